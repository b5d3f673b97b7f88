"""The step on an NVIDIA GPU: CUDA sources, one operation a file, compiled by NVRTC and launched through cuda-python."""
