// A token a row, a row to a cluster of 8 blocks.
#define CLUSTER 8
#include "draw.cuh"

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS)
    draw_cluster(const float* logits, i64 stride, int vocabulary, Answer* answers, const Draw* draws, const int* step, int* last_tokens) {
  draw_row(logits, stride, vocabulary, answers, draws, step, last_tokens);
}
