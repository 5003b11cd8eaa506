// torch's core headers and the operators that the source names, for candidates that the thin header cannot carry.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorUtils.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>
#include "kz_ops.h"
#include "kz_torch.h"
namespace torch {
using namespace at;  // NOLINT: as torch's own header does
}
