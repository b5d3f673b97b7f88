"""From a model file's tensors to matrices as the kernels keep them."""
