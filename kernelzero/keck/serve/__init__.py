"""Keck for others: a verdict store, a service over HTTP and its client, and actors on a Ray cluster.

    store.py                       verdicts in SQLite; the same question is paid for once
    questions.py, dispatch.py      what a request asks; one queue in front of one Keck, fair to its clients
    app.py, service.py             FastAPI, and the program `kernelzero serve`
    prometheus.py                  metrics
    remote.py                      the client: the protocol of Keck over HTTP
    schedule.py, cluster.py        many Kecks behind one, with Ray

All of them speak the protocol of `kernelzero.keck.client.Keck`; none decides anything. Import from the submodules: most
need packages that plain judging does not.
"""
