// A token a row, where clusters of blocks are not to be had: a block holds a whole row, most of it in local memory.
#define CLUSTER 1
#include "draw.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    draw(const float* logits, i64 stride, int vocabulary, Answer* answers, const Draw* draws, const int* step, int* last_tokens) {
  draw_row(logits, stride, vocabulary, answers, draws, step, last_tokens);
}
