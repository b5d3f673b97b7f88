// What a layer may ask of attention beside softmax(scale q K') V, compiled in where its define is 1: WINDOW, SINKS, SOFT_CAP. Off, nothing is left of it.
#pragma once
#include "softmax.cuh"
#include "step.cuh"

#define LOG2_E 1.44269504f

struct Switches {
  const float* sinks;      // a score a query head, of a token without a value
  int window;              // tokens that a row sees, its own among them
  float cap, inverse_cap;  // in units of log2 e

  // The first block that holds a token which a row at `position` sees.
  METHOD int first_block(int position) const { return WINDOW ? max(position - window + 1, 0) / PAGE_TOKENS : 0; }

  // What the row's total and its sink weigh; the sink's state is (sink log2 e, 1, 0).
  METHOD Weights absorb_sink(float& m, float& l, int head) const {
    const Weights w = absorb(m, __fmul_rn(sinks[head], LOG2_E));
    l = folded(l, 1.f, w);
    return w;
  }

  // cap tanh(score / cap), as score times a ratio of polynomials in (score / cap)^2. Not a number stays so.
  METHOD float capped(float score) const {
    const float limit = __fmul_rn(9.f, cap), held = score > limit ? limit : score < -limit ? -limit : score, y = __fmul_rn(held, inverse_cap);
    const float z = __fmul_rn(y, y);
    const float p = fmaf(fmaf(fmaf(fmaf(1.3419828804e-8f, z, 2.0661267627e-5f), z, 3.4989963751e-3f), z, 1.3383980095e-1f), z, 1.f);
    const float q = fmaf(fmaf(fmaf(fmaf(7.8047321495e-7f, z, 3.2910387381e-4f), z, 2.5890206918e-2f), z, 4.6717301011e-1f), z, 1.f);
    return __fmul_rn(held, quotient(p, q));
  }
};
