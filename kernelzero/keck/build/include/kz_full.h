// All of torch's C++ interface, less the Python bindings.
#pragma once
#include <torch/all.h>
#include "kz_torch.h"
