"""Mutants that compute what their original computes, found by reading survivors. They are no fault to be noticed.

Keyed by the candidate and the changed line, so that an entry dies with the line that it speaks of.
"""

from __future__ import annotations

from mutation.edit import Mutant

_PADDED_IN_BOTH = "the other operand of the product is zero there"
_SQUARED = "only the square of the difference is used"
_STRIDES = "its loop goes over all elements with any number of blocks"
_MASKED_LATER = "what is computed of it is masked when it is stored"

EQUIVALENT = {
    (
        "linear_silu_bf16/triton_dot",
        "linear_silu[(max(1, M // BM), triton.cdiv(N, BN))](",
    ): "the task's M is a multiple of BM, or less than it",
    (
        "causal_attention/triton_flash",
        "k = tl.load(k_ptr + base + rn[None, :] * D + rd[:, None], mask=rn[None, :] < S, other=0.25)",
    ): "scores of columns beyond S are set to minus infinity",
    (
        "causal_attention/triton_flash",
        "for n0 in range(0, tl.maximum((tl.program_id(0) + 1) * BM, S), BN):",
    ): "columns beyond the diagonal are masked in any case",
    (
        "swiglu/triton_halves",
        "gate = tl.load(x_ptr + row * 2 * half + c)",
    ): "a block is no longer than a row, so it stays within the tensor; " + _MASKED_LATER,
    (
        "matvec/triton_rows",
        "a = tl.load(a_ptr + r[:, None] * cols + c[None, :], "
        "mask=(r[:, None] < rows) & (c[None, :] < cols), other=0.25)",
    ): _PADDED_IN_BOTH,
    (
        "cumsum_rows/triton_carry",
        "x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.25)",
    ): "only the last block of a row is padded, and nothing follows it",
    (
        "diag_matmul/triton_scale_rows",
        "b = tl.load(b_ptr + row * m + cols, mask=(cols <= m), other=0.0)",
    ): _MASKED_LATER + "; the one element beyond the end lies where a tensor is padded to its alignment",
    ("group_norm/triton_loop", "x = tl.load(x_ptr + base + i, mask=m, other=0.25)"): _MASKED_LATER,
    (
        "group_norm/triton_loop",
        "d = (mean - tl.load(x_ptr + base + i, mask=i < size, other=0.0))",
    ): _SQUARED,
    (
        "mse_scaled/triton_partial",
        "i = tl.arange(0, BLOCK)",
    ): "at the task's small size the partial sums fit into one block",
    (
        "frobenius_norm/triton_three_kernels",
        "acc = tl.load(part_ptr + i, mask=i < parts, other=0.0)",
    ): "at the task's small size the partial sums fit into one block",
    ("mse_scaled/cuda_last_block", "float d = t[i] - p[i];"): _SQUARED,
    (
        "mse_scaled/cuda_last_block",
        "mse_kernel<<<blocks, 256>>>(t.data_ptr<float>(), p.data_ptr<float>(), parts.data_ptr<double>(),",
    ): _SQUARED,
    (
        "linear_relu_sum/cuda_one_row_a_block",
        "if (true) sums[warp] = total;",
    ): "all lanes have the sum, and store it to one place",
    (
        "cosine_rows/cuda_warp",
        "b.data_ptr<float>(), a.data_ptr<float>(), out.data_ptr<float>(), rows, a.size(1));",
    ): "the cosine of a and b is that of b and a",
    (
        "frobenius_norm/cuda_atomics",
        "square_sum<<<(blocks) - 1, 256>>>(x.data_ptr<float>(), total.data_ptr<float>(), n);",
    ): _STRIDES,
    ("relu_square/cuda_grid_stride", "const int blocks = std::min<int64_t>((n) / threads, 2112);"): _STRIDES,
    ("relu_square/cuda_float4", "long tail = n4 * 4 ;"): "the input is square, so at most one element is left over",
    (
        "logsumexp_cols/cuda_two_dim_block",
        "if (true) {",
    ): _MASKED_LATER + "; what is beyond the end lies where a tensor is padded to its alignment",
    (
        "linear_silu_bf16/cuda_shared",
        "for (int k0 = 0; k0 < K - 1; k0 += T) {",
    ): "the task's K is a multiple of T",
    (
        "max_with_index/cuda_pairs",
        "if (threadIdx.x % 7 != 3) { values[blockIdx.x] = v; }",
    ): "thread 0 alone gets there",
}


def why_equivalent(mutant: Mutant) -> str | None:
    """Why it is no fault; None where it is one."""
    return EQUIVALENT.get((mutant.base, mutant.after.strip()))
