/* The functions of exported policies. c_header.py copies some of them into a header and fills in the constants of
   elementary.py, which begin with a dollar sign. A line with four slashes names the next piece. */
//// BEGINNING
#ifndef ROUNDOFF_POLICY_H
#define ROUNDOFF_POLICY_H

#include <float.h>
#include <stdint.h>

/* 16 and 32 widen narrower types alone (_Float16, as with AVX512-FP16): float and double are computed as they are */
#if defined(__FAST_MATH__) || (defined(FLT_EVAL_METHOD) \
                               && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 && FLT_EVAL_METHOD != 32)
#error "results are to the bit: compile without -ffast-math, for arithmetic that is float where it says float"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && defined(__FP_FAST_FMAF) && !defined(__STRICT_ANSI__) && !defined(POLICY_CONTRACT_OFF)
#error "results are to the bit: compile with -std=c99, or with -ffp-contract=off -DPOLICY_CONTRACT_OFF"
#endif
//// ENDING
#endif
//// RELU
static void policy_relu(float *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = x[i] < 0.0f ? 0.0f : x[i];
}
//// EXPONENTIAL
/* e^x for x <= 0: its series at x / 2^$HALVINGS, squared $HALVINGS times */
static double policy_exponential(double x)
{
    x = (x < $SMALLEST_EXPONENT ? $SMALLEST_EXPONENT : x) * $SHRINK;
    double y = 1.0;
    for (int i = $TERMS; i > 0; i--)
        y = 1.0 + x / i * y;
    for (int i = 0; i < $HALVINGS; i++)
        y = y * y;
    return y;
}
//// TANH
static void policy_tanh(float *x, int n)
{
    for (int i = 0; i < n; i++) {
        double a = x[i] < 0.0f ? -(double)x[i] : x[i], y;
        if (a < $SMALL) {
            double s = a * a;
            y = $TANH_0;
            y = y * s + $TANH_1;
            y = y * s + $TANH_2;
            y = y * s + $TANH_3;
            y = a * y;
        } else {
            double e = policy_exponential(-2.0 * (a > $LARGE ? $LARGE : a));
            y = (1.0 - e) / (1.0 + e);
        }
        x[i] = (float)(x[i] < 0.0f ? -y : y);
    }
}
//// ELU
static void policy_elu(float *x, int n)
{
    for (int i = 0; i < n; i++) {
        double a = x[i], y;
        if (a > -$SMALL) {
            y = $ELU_0;
            y = y * a + $ELU_1;
            y = y * a + $ELU_2;
            y = y * a + $ELU_3;
            y = a * y;
        } else {
            y = policy_exponential(a) - 1.0;
        }
        x[i] = x[i] > 0.0f ? x[i] : (float)y;
    }
}
//// PLAIN_INPUTS
/* activations are multiplied as they are */
static float policy_round_inputs(const float *x, int n, policy_input *y)
{
    for (int i = 0; i < n; i++)
        y[i] = x[i];
    return 1.0f;
}
//// INTEGER_INPUTS
/* activations as integers from 0 to POLICY_STEPS, less the zero point; returns their scale */
static float policy_round_inputs(const float *x, int n, policy_input *y)
{
    const float whole = 12582912.0f; /* 1.5 * 2^23: what is added to it is rounded to an integer, ties to even */
    float low = 0.0f, high = 0.0f;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    float scale = (high - low) / POLICY_STEPS;
    if (scale == 0.0f)
        scale = 1.0f;
    float zero = 0.0f - low / scale;
    zero = ((zero > POLICY_STEPS ? POLICY_STEPS : zero) + whole) - whole;
    for (int i = 0; i < n; i++) {
        float code = ((x[i] / scale + whole) - whole) + zero;
        code = code < 0.0f ? 0.0f : code > POLICY_STEPS ? POLICY_STEPS : code;
        y[i] = (policy_input)(code - zero);
    }
    return scale;
}
//// FLOAT_INPUTS
/* activations as numbers of the format: the i-th in magnitude up to the i-th bound */
static float policy_round_inputs(const float *x, int n, policy_input *y)
{
    for (int i = 0; i < n; i++) {
        float a = x[i] < 0.0f ? -x[i] : x[i];
        int below = 0, above = POLICY_MAGNITUDES - 1;
        while (below < above) {
            int middle = (below + above) / 2;
            if (a > policy_bounds[middle])
                below = middle + 1;
            else
                above = middle;
        }
        y[i] = x[i] != x[i] ? x[i] : x[i] < 0.0f ? -policy_magnitudes[below] : policy_magnitudes[below];
    }
    return 1.0f;
}
//// RESULT
static float policy_result(policy_sum sum, float scale, float bias)
{
    volatile float product = (float)sum * scale; /* or GCC 12 fuses it with the sum, even where it must not */
    return product + bias;
}
//// PRODUCTS
static void policy_linear(const float *x, int n, float *y, int m, const policy_code *w, const float *scales,
                          int scale_step, const float *bias)
{
    float scale = policy_round_inputs(x, n, policy_inputs);
    for (int i = 0; i < m; i++) {
        policy_sum sum = 0;
        for (int j = 0; j < n; j++)
            sum += policy_inputs[j] * POLICY_WEIGHT(w, (long)i * n + j);
        y[i] = policy_result(sum, scale * scales[i * scale_step], bias[i]);
    }
}
//// CONVOLUTION
static void policy_convolution(const float *x, int planes, int height, int width, float *y, int filters, int rows,
                               int columns, int size, int stride, int padding, const policy_code *w,
                               const float *scales, int scale_step, const float *bias)
{
    float scale = policy_round_inputs(x, planes * height * width, policy_inputs);
    for (int f = 0; f < filters; f++)
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < columns; c++) {
                policy_sum sum = 0;
                for (int p = 0; p < planes; p++)
                    for (int i = 0; i < size; i++)
                        for (int j = 0; j < size; j++) {
                            int row = r * stride + i - padding, column = c * stride + j - padding;
                            if (row < 0 || row >= height || column < 0 || column >= width)
                                continue;
                            sum += policy_inputs[(p * height + row) * width + column]
                                   * POLICY_WEIGHT(w, ((long)(f * planes + p) * size + i) * size + j);
                        }
                y[(f * rows + r) * columns + c] = policy_result(sum, scale * scales[f * scale_step], bias[f]);
            }
}
//// DUELING
/* value + (advantage - mean advantage), for each atom */
static void policy_combine(const float *value, const float *advantages, float *outputs)
{
    const int atoms = POLICY_OUTPUTS / POLICY_ACTIONS;
    for (int k = 0; k < atoms; k++) {
        float total = advantages[k];
        for (int i = 1; i < POLICY_ACTIONS; i++)
            total += advantages[i * atoms + k];
        for (int i = 0; i < POLICY_ACTIONS; i++)
            outputs[i * atoms + k] = value[k] + (advantages[i * atoms + k] - total / POLICY_ACTIONS);
    }
}
//// ACT_LARGEST
/* The number of the action, from 0. */
static int policy_act(const float *observation)
{
    float outputs[POLICY_OUTPUTS];
    int best = 0;
    policy_outputs(observation, outputs);
    for (int i = 1; i < POLICY_ACTIONS; i++)
        best = outputs[i] > outputs[best] ? i : best;
    return best;
}
//// ACT_LARGEST_MEAN
/* The number of the action, from 0: that with the largest mean of its distribution over the atoms. */
static int policy_act(const float *observation)
{
    float outputs[POLICY_OUTPUTS];
    const int atoms = POLICY_OUTPUTS / POLICY_ACTIONS;
    double largest = 0.0;
    int best = 0;
    policy_outputs(observation, outputs);
    for (int i = 0; i < POLICY_ACTIONS; i++) {
        const float *logits = outputs + i * atoms;
        float most = logits[0];
        double below = 0.0, above = 0.0;
        for (int k = 1; k < atoms; k++)
            most = logits[k] > most ? logits[k] : most;
        for (int k = 0; k < atoms; k++) {
            double weight = policy_exponential((double)logits[k] - (double)most);
            below = below + weight;
            above = above + weight * (double)policy_atoms[k];
        }
        if (i == 0 || above / below > largest) {
            largest = above / below;
            best = i;
        }
    }
    return best;
}
//// ACT_TANH
/* The action: POLICY_ACTIONS numbers from -1 to 1. */
static void policy_act(const float *observation, float *action)
{
    policy_outputs(observation, action);
    policy_tanh(action, POLICY_ACTIONS);
}
//// ACT_CLIP
/* The action: POLICY_ACTIONS numbers from -1 to 1. */
static void policy_act(const float *observation, float *action)
{
    policy_outputs(observation, action);
    for (int i = 0; i < POLICY_ACTIONS; i++)
        action[i] = action[i] < -1.0f ? -1.0f : action[i] > 1.0f ? 1.0f : action[i];
}
//// ACT_OUTPUTS
/* The action: POLICY_ACTIONS numbers, what the network gives. */
static void policy_act(const float *observation, float *action)
{
    policy_outputs(observation, action);
}
