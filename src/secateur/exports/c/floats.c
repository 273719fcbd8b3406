/* Elementary functions in float32 without a library. Each block is one function with its comment;
 * c_files.py extracts the blocks that are needed. Error bounds are the largest errors that
 * benchmarks/c_math.py found over every 61st float32 of the range, against float64, plus a twentieth;
 * they hold with and without fused multiplication and addition. The result for nan is nan. */

/* The float32 with these bits. */
static inline float sc_from_bits(uint32_t bits)
{
    union { uint32_t bits; float value; } pun;
    pun.bits = bits;
    return pun.value;
}

/* The bits of a float32. */
static inline uint32_t sc_to_bits(float value)
{
    union { uint32_t bits; float value; } pun;
    pun.value = value;
    return pun.bits;
}

/* |x|: exact. */
static inline float sc_abs(float x)
{
#if defined(__GNUC__)
    return __builtin_fabsf(x); /* always an instruction, never a call */
#else
    return x > 0.0f ? x : 0.0f - x;
#endif
}

/* The larger argument: exact; nan if either is nan. */
static inline float sc_max(float a, float b)
{
    return a > b || a != a ? a : b;
}

/* The smaller argument: exact; nan if either is nan. */
static inline float sc_min(float a, float b)
{
    return a < b || a != a ? a : b;
}

/* The greatest integer <= x: exact. */
static inline float sc_floor(float x)
{
    float whole;
    if (!(sc_abs(x) < 8388608.0f)) return x; /* an integer, inf or nan */
    whole = (float)(int32_t)x;
    return whole > x ? whole - 1.0f : whole;
}

/* The smallest integer >= x: exact. */
static inline float sc_ceil(float x)
{
    return -sc_floor(-x);
}

/* The nearest integer, ties to even, as numpy.round: exact. */
static inline float sc_round(float x)
{
    int32_t whole;
    float rest;
    if (!(sc_abs(x) < 8388608.0f)) return x; /* an integer, inf or nan */
    whole = (int32_t)x;
    rest = sc_abs(x - (float)whole);
    if (rest > 0.5f || (rest == 0.5f && (whole & 1))) whole += x < 0.0f ? -1 : 1;
    return (float)whole;
}

/* The square root: correctly rounded where the processor has it, else relative error < 1.3e-7;
 * nan below 0. (A builtin would leave a call for the errno of negative arguments.) */
static inline float sc_sqrt(float x)
{
#if defined(__GNUC__) && defined(__ARM_FP) && (__ARM_FP & 4) && !defined(__aarch64__) && !defined(SC_PORTABLE)
    float root;
    __asm__("vsqrt.f32 %0, %1" : "=t"(root) : "t"(x));
    return root;
#elif defined(__GNUC__) && defined(__SSE__) && !defined(SC_PORTABLE)
    float root;
    __asm__("sqrtss %1, %0" : "=x"(root) : "x"(x));
    return root;
#else
    union { uint32_t bits; float value; } root;
    float scale = 1.0f;
    root.bits = 0x7FC00000u;
    if (!(x > 0.0f)) return x < 0.0f ? root.value : x;
    if (x > 3.4028234e38f) return x;
    if (x < 1.17549435e-38f) x *= 16777216.0f, scale = 1.0f / 4096.0f; /* subnormal */
    /* Half the exponent is a guess within 4 %; each of Newton's steps squares its error. */
    root.value = x;
    root.bits = (root.bits >> 1) + 0x1FBB4F2Eu;
    root.value = 0.5f * (root.value + x / root.value);
    root.value = 0.5f * (root.value + x / root.value);
    root.value = 0.5f * (root.value + x / root.value);
    return root.value * scale;
#endif
}

/* 1/sqrt(x): relative error < 1.2e-7; inf at 0, nan below. */
static inline float sc_rsqrt(float x)
{
    return 1.0f / sc_sqrt(x);
}

/* x to the power of an integer: relative error < 1e-7 times the number of multiplications. */
static float sc_powi(float x, int32_t power)
{
    uint32_t left = power < 0 ? 0u - (uint32_t)power : (uint32_t)power;
    float result = 1.0f;
    for (; left; left >>= 1, x *= x)
        if (left & 1u) result *= x;
    return power < 0 ? 1.0f / result : result;
}

/* e to the x: relative error < 2.3e-7 from -86.98 to 88.72; 0 below, inf above. */
static float sc_exp(float x)
{
    int32_t power;
    float rest, sum;
    if (!(sc_abs(x) <= 86.9f)) {
        if (x > 88.7228394f) return sc_from_bits(0x7F800000u);
        if (x < -86.9857f) return 0.0f;
        if (x != x) return x;
    }
    /* x = rest + (power - 126) ln 2 with |rest| <= ln(2)/2, and power >= 0, so that the conversion rounds
     * down. ln 2 is in two parts, the first of so few digits that its multiples are exact. */
    power = (int32_t)(x * 1.44269504f + 126.5f);
    sum = (float)(power - 126);
    rest = (x - sum * 0.693115234f) - sum * 3.19461850e-05f;
    sum = 0.0165938959f * rest + 0.0838405862f; /* twice e to the rest */
    sum = sum * rest + 0.333352208f;
    sum = sum * rest + 0.999976993f;
    sum = sum * rest + 1.9999994f;
    sum = sum * rest + 2.00000024f;
    return sum * sc_from_bits((uint32_t)power << 23);
}

/* e to the x, minus 1: relative error < 3.8e-7; -1 below -87, inf above 88.72. */
static float sc_expm1(float x)
{
    float sum;
    if (!(sc_abs(x) <= 0.5f)) return sc_exp(x) - 1.0f;
    sum = 0.00138757867f * x + 0.00840239134f;
    sum = sum * x + 0.0416689701f;
    sum = sum * x + 0.166661352f;
    sum = sum * x + 0.499999821f;
    return sum * x * x + x;
}

/* ln(1 + f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1, as 2 artanh(f / (2 + f)). */
static inline float sc_log_near_1(float f)
{
    const float s = f / (2.0f + f), u = s * s;
    const float sum = (0.298981518f * u + 0.399766356f) * u + 0.666667819f;
    /* 2s = f - s f, where f is exact. */
    return f - s * (f - u * sum);
}

/* ln(x): relative error < 9e-8, also near 1; -inf at 0, nan below. */
static float sc_log(float x)
{
    uint32_t bits;
    int32_t power = 0;
    if (!(x >= 1.17549435e-38f && x <= 3.4028234e38f)) {
        if (x == 0.0f) return sc_from_bits(0xFF800000u);
        if (!(x > 0.0f)) return sc_from_bits(0x7FC00000u);
        if (x > 1.0f) return x; /* inf */
        x *= 8388608.0f, power = -23; /* subnormal */
    }
    /* x = m 2^power with m from sqrt(1/2) to sqrt(2). */
    bits = sc_to_bits(x) - 0x3F3504F3u;
    power += (int32_t)(bits >> 23) - (bits >> 31 ? 512 : 0);
    x = sc_from_bits((bits & 0x007FFFFFu) + 0x3F3504F3u) - 1.0f;
    return (float)power * 0.693115234f + ((float)power * 3.19461850e-05f + sc_log_near_1(x));
}

/* ln(1 + x): relative error < 2.0e-7; -inf at -1, nan below. */
static float sc_log1p(float x)
{
    return x > -0.29f && x < 0.41f ? sc_log_near_1(x) : sc_log(1.0f + x);
}

/* asinh(x): relative error < 4.5e-7; nan only for nan. */
static float sc_asinh(float x)
{
    const float a = sc_abs(x), root = sc_sqrt(a * a + 1.0f);
    float y;
    if (a < 0.3f) y = sc_log_near_1(a + a * a / (1.0f + root));
    else y = a < 1e9f ? sc_log(a + root) : sc_log(a) + 0.693147181f;
    return x < 0.0f ? -y : y;
}

/* tanh(x): absolute error < 3.6e-7, relative error < 3.6e-7, never beyond -1 and 1. */
static float sc_tanh(float x)
{
    const float u = x * x;
    float p, q;
    if (sc_abs(x) > 7.8f) return x > 0.0f ? 1.0f : -1.0f;
    p = 0.0180133581f * u + 25.5340328f;
    q = u + 396.059235f;
    p = p * u + 4133.93506f;
    q = q * u + 30223.2969f;
    p = p * u + 155113.734f;
    q = q * u + 539342.938f;
    p = p * u + 1152687.75f;
    q = q * u + 1152687.75f;
    return x * p / q;
}

/* 1 / (1 + e to the -x): absolute error < 2.5e-7, never beyond 0 and 1; 0 below -16.2. */
static float sc_sigmoid(float x)
{
    const float u = x * x;
    float p, q;
    if (sc_abs(x) > 16.2f) return x > 0.0f ? 1.0f : 0.0f;
    p = 46.6794548f * u + 48495.8008f;
    q = u + 3912.68311f;
    p = p * u + 8518163.0f;
    q = q * u + 1567988.5f;
    p = p * u + 263784432.0f;
    q = q * u + 122000464.0f;
    q = q * u + 1.05513792e9f;
    return 0.5f + x * p / q;
}

/* erf(x): absolute error < 5.5e-7, relative error < 8e-7, never beyond -1 and 1. */
static float sc_erf(float x)
{
    const float u = x * x;
    float p, q;
    if (sc_abs(x) > 3.55f) return x > 0.0f ? 1.0f : -1.0f;
    p = 15.9029293f * u + 414.917633f;
    q = u + 105.383667f;
    p = p * u + 4037.57642f;
    q = q * u + 1332.40161f;
    p = p * u + 17568.9844f;
    q = q * u + 9530.62988f;
    p = p * u + 77260.4531f;
    q = q * u + 38393.1133f;
    q = q * u + 68470.3281f;
    return x * p / q;
}

/* 1 - erf(x): absolute error < 5.5e-7, never beyond 0 and 2; 0 above 3.55. */
static float sc_erfc(float x)
{
    return 1.0f - sc_erf(x);
}

/* sin(x + quarters pi/2): the series on both sides of the nearest multiple of pi/2. */
static float sc_sin_quarters(float x, int32_t quarters)
{
    float turns, u, result;
    int32_t whole;
    if (!(sc_abs(x) <= 10000.0f)) return sc_from_bits(0x7FC00000u);
    whole = (int32_t)(x * 0.636619772f + (x < 0.0f ? -0.5f : 0.5f));
    turns = (float)whole;
    /* pi/2 in three parts, the first two of so few digits that their multiples are exact. */
    x = ((x - turns * 1.5703125f) - turns * 4.83751297e-04f) - turns * 7.54978995e-08f;
    u = x * x;
    whole += quarters;
    if (whole & 1) {
        result = (2.44312141e-05f * u - 0.0013887306f) * u + 0.0416666456f;
        result = (result * u - 0.5f) * u + 1.0f;
    } else {
        result = (-0.000195108412f * u + 0.00833213143f) * u - 0.166666538f;
        result = result * u * x + x;
    }
    return whole & 2 ? -result : result;
}

/* sin(x): absolute error < 9e-8 for |x| <= 10000; a nan beyond. */
static inline float sc_sin(float x)
{
    return sc_sin_quarters(x, 0);
}

/* cos(x): absolute error < 9e-8 for |x| <= 10000; a nan beyond. */
static inline float sc_cos(float x)
{
    return sc_sin_quarters(x, 1);
}

/* y = max(step W x + b, lowest), for weights that are multiples of a step. For every output, the code
 * holds the number of remaining weights and, for each, the distance of its input from the previous
 * one and the weight. */
static void sc_sparse8(const float *x, float *y, int outputs, const uint8_t *code, const float *bias, float step, float lowest)
{
    for (; outputs != 0; --outputs) {
        const float *p = x;
        float sum = 0.0f;
        for (int k = *code++; k != 0; --k) {
            p += *code++;
            sum += (float)(int8_t)*code++ * *p;
        }
        sum = sum * step + *bias++;
        *y++ = sum < lowest ? lowest : sum;
    }
}

/* y = max(W x + b, lowest), for weights stored as the first half of a float. For every output, the
 * code holds the number of remaining weights and, for each, the distance of its input from the
 * previous one. */
static void sc_sparse16(const float *x, float *y, int outputs, const uint8_t *code, const uint16_t *weights, const float *bias, float lowest)
{
    for (; outputs != 0; --outputs) {
        const float *p = x;
        float sum = *bias++;
        for (int k = *code++; k != 0; --k) {
            p += *code++;
            sum += sc_from_bits((uint32_t)*weights++ << 16) * *p;
        }
        *y++ = sum < lowest ? lowest : sum;
    }
}

/* y = max(W x + b, lowest). For every output, the tables hold the number of remaining weights and,
 * for each, the distance of its input from the previous one and the weight. */
static void sc_sparse(const float *x, float *y, int outputs, const uint8_t *counts, const uint8_t *gaps, const float *weights, const float *bias, float lowest)
{
    for (; outputs != 0; --outputs) {
        const float *p = x;
        float sum = *bias++;
        for (int k = *counts++; k != 0; --k) {
            p += *gaps++;
            sum += *weights++ * *p;
        }
        *y++ = sum < lowest ? lowest : sum;
    }
}
