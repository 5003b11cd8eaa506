"""The Proposer: its prompt, the module in its answer, the gates, and the rule-based composer."""
