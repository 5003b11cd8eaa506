"""Which names are candidate operator APIs, and which are not.

A candidate is a deterministic function of tensors (or a module that computes one): `nn.X`, `torch.x`, `torch.linalg.x`,
`torch.fft.x`, `torch.special.x` or `torch.nn.functional.x`. Not candidates: constructors of tensors, plumbing
(containers, parameters, initialisers, devices, I/O, autograd, distributed, compilation), identities (no output could
show that they were called), predicates that return a Python value, sparse and quantised helpers, names that need a GPU
or a lazy shape, names that still exist but raise, and random operators (a proposed module must be deterministic).

Two names of one operator (`torch.relu`, `torch.nn.functional.relu`, `nn.ReLU`) stay different APIs, as in the paper.
The rules read names only; whether a name exists is asked of the installed torch (`catalogue.resolve`).
"""

from __future__ import annotations

NAMESPACES = ("nn", "torch", "torch.linalg", "torch.fft", "torch.special", "torch.nn.functional")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _under(namespace: str, leaves: str) -> tuple[str, ...]:
    return tuple(f"{namespace}.{leaf}" for leaf in leaves.split())


CONTAINERS_AND_PLUMBING = _words(
    """nn.Sequential nn.ModuleList nn.ModuleDict nn.Parameter nn.ParameterList nn.ParameterDict nn.Module nn.Buffer
    nn.Container nn.RNNBase nn.RNNCellBase nn.DataParallel nn.SyncBatchNorm nn.UninitializedParameter
    nn.UninitializedBuffer nn.CrossMapLRN2d nn.NLLLoss2d torch.Size torch.device torch.dtype torch.Generator
    torch.Stream torch.Event torch.no_grad torch.enable_grad torch.inference_mode torch.set_grad_enabled torch.autocast
    torch.save torch.load torch.compile torch.finfo torch.iinfo torch.manual_seed torch.seed torch.initial_seed
    torch.set_rng_state torch.get_rng_state torch.set_printoptions torch.get_default_dtype torch.set_default_dtype
    torch.is_grad_enabled torch.is_autocast_enabled torch.is_autocast_cpu_enabled torch.clear_autocast_cache
    torch.are_deterministic_algorithms_enabled torch.vmap torch.cond torch.typename torch.wait torch.fork
    torch.batch_norm_stats torch.spmm"""
)
CONSTRUCTORS = _words(
    """torch.zeros torch.zeros_like torch.ones torch.ones_like torch.full torch.full_like torch.empty torch.empty_like
    torch.empty_strided torch.eye torch.tensor torch.as_tensor torch.asarray torch.from_numpy torch.frombuffer
    torch.arange torch.range torch.linspace torch.logspace torch.hann_window torch.hamming_window torch.bartlett_window
    torch.blackman_window torch.kaiser_window torch.tril_indices torch.triu_indices torch.sparse_coo_tensor
    torch.nested_tensor torch.scalar_tensor torch.fill torch.fill_ torch.fft.fftfreq torch.fft.rfftfreq"""
)
IDENTITIES = _words("nn.Identity torch.clone torch.detach torch.positive")
PYTHON_VALUES = _words(
    """torch.numel torch.is_tensor torch.is_complex torch.is_floating_point torch.is_nonzero torch.equal torch.allclose
    torch.broadcast_shapes torch.result_type torch.can_cast torch.promote_types"""
)
REMOVED = _words("torch.eig torch.symeig torch.solve torch.lstsq torch.gesv torch.potrf torch.trtrs")
"""Some of these names still exist and raise when called."""
RANDOM = _words(
    """nn.RReLU torch.rrelu torch.normal torch.bernoulli torch.multinomial torch.poisson torch.binomial
    torch.nn.functional.rrelu torch.nn.functional.rrelu_ torch.nn.functional.gumbel_softmax torch.pca_lowrank
    torch.svd_lowrank torch.lobpcg"""
)
_NOT_CANDIDATES = CONTAINERS_AND_PLUMBING | CONSTRUCTORS | IDENTITIES | PYTHON_VALUES | REMOVED | RANDOM
_RANDOM_WORDS = ("dropout", "fractional", "rand")
"""Kinds of random operators, found in lower-case names: dropout of all sorts, fractional pooling, torch.rand*."""

_PLUMBING_PREFIXES = (
    *("get_", "set_", "is_", "sym_", "has_", "use_", "init_", "import_", "parse_", "autocast_", "sparse_", "empty"),
    *("quantize", "fake_quantize", "fbgemm_", "cudnn_", "miopen_", "mkldnn_", "native_", "q_", "handle_", "assert_"),
)


def is_candidate(name: str) -> bool:
    """Whether a canonical name may be an operator API, judged by the name alone."""
    namespace, _, leaf = name.rpartition(".")
    if namespace not in NAMESPACES or leaf.startswith("_") or name in _NOT_CANDIDATES:
        return False
    if namespace == "nn":
        return leaf[:1].isupper() and not leaf.startswith("Lazy") and not _is_random(leaf)
    return leaf[:1].islower() and not leaf.startswith(_PLUMBING_PREFIXES) and not _is_random(leaf)


def _is_random(leaf: str) -> bool:
    return any(word in leaf.lower() for word in _RANDOM_WORDS)


ADDED = (
    _under(
        "nn",
        """ChannelShuffle CircularPad1d CircularPad2d CircularPad3d Fold GaussianNLLLoss
    HingeEmbeddingLoss HuberLoss MaxUnpool1d MultiLabelMarginLoss MultiMarginLoss PoissonNLLLoss RMSNorm Softmin
    Softshrink Softsign Tanhshrink TripletMarginWithDistanceLoss ZeroPad1d ZeroPad3d""",
    )
    + _under(
        "torch.nn.functional",
        """adaptive_max_pool3d celu channel_shuffle conv_transpose3d
    gaussian_nll_loss hardshrink hinge_embedding_loss huber_loss lp_pool1d max_unpool1d max_unpool3d mish
    multi_margin_loss multilabel_margin_loss pdist poisson_nll_loss prelu rms_norm scaled_dot_product_attention
    tanhshrink triplet_margin_loss triplet_margin_with_distance_loss""",
    )
    + _under(
        "torch",
        """acosh addbmm addmv addr amin aminmax asinh atanh atleast_2d celu conv1d conv2d
    conv3d conv_transpose1d conv_transpose2d copysign corrcoef cov cummax cummin cumulative_trapezoid deg2rad
    diagonal_scatter digamma dstack erfc float_power fmax fmin frac gradient hypot index_add index_copy index_fill inner
    kron layer_norm ldexp lgamma logaddexp logaddexp2 logcumsumexp masked_scatter moveaxis msort nanmean nansum
    nextafter polar prelu rad2deg ravel renorm scatter_reduce select selu sgn sinh std_mean swapaxes take
    take_along_dim trapezoid trunc unflatten vander vdot xlogy""",
    )
    + _under(
        "torch.linalg",
        """cross det diagonal matmul matrix_exp matrix_norm matrix_power multi_dot
    pinv solve_triangular vecdot""",
    )
    + _under("torch.fft", "fftshift hfft ifft2 ifftshift ihfft rfftn")
    + _under(
        "torch.special",
        """bessel_j0 entr erf erfc expit gammaln i0e i1 i1e log_ndtr logit logsumexp
    ndtr ndtri sinc softmax xlog1py xlogy zeta""",
    )
)
"""Deterministic operators that the counted classes do not use, added with count 0 so that the catalogue is wide."""
