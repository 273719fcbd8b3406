/* Integer arithmetic of quantised networks, each with a bit-exact reference in integers.py. Shifts of negative
 * numbers to the right keep their sign, as with every compiler for ARM, x86 and RISC-V. */

/* value between lowest and highest. */
static inline int32_t sc_clamp(int32_t value, int32_t lowest, int32_t highest)
{
    return value < lowest ? lowest : value > highest ? highest : value;
}

/* value * multiplier / 2^shift, rounded to the nearest (halves up) and kept between lowest and
 * highest. 1 <= shift <= 62; from 33 on, which is any scale below 1/4, 32 bits are enough. */
static inline int32_t sc_requantise(int32_t value, int32_t multiplier, int32_t shift, int32_t lowest, int32_t highest)
{
    int64_t product = (int64_t)value * multiplier;
    if (shift >= 33) {
        const int32_t upper = (int32_t)(product >> 32);
        return sc_clamp((upper + ((int32_t)1 << (shift - 33))) >> (shift - 32), lowest, highest);
    }
    product = (product + ((int64_t)1 << (shift - 1))) >> shift;
    return (int32_t)(product < lowest ? lowest : product > highest ? highest : product);
}

/* 32768 tanh(k/8), k = 0 ... 64. */
static const int16_t sc_tanh_nodes[65] = {
    0, 4075, 8025, 11743, 15143, 18173, 20813, 23066, 24956, 26519, 27797, 28830, 29660,
    30322, 30847, 31262, 31589, 31846, 32048, 32206, 32329, 32426, 32501, 32560, 32606, 32642,
    32670, 32691, 32708, 32721, 32732, 32740, 32746, 32751, 32755, 32758, 32760, 32762, 32763,
    32764, 32765, 32766, 32766, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767,
    32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767, 32767
};

/* tanh from 4096ths to 32768ths: |error| < 1.2 units of the result. The function is odd, and
 * monotonic except for single steps of -1. */
static int16_t sc_tanh_q15(int16_t x)
{
    /* tanh(a + d) = t + (1 - tt) d (1 - d (t + d (1/3 - tt))) + O(d^4), from the nearest node. */
    const int32_t size = x < 0 ? -(int32_t)x : x;
    const int32_t node = (size + 256) >> 9;
    const int32_t d = (size - (node << 9)) * 8;
    const int32_t t = sc_tanh_nodes[node];
    const int32_t tt = (t * t + 16384) >> 15;
    const int32_t inner = t + (d * (10923 - tt) >> 15);
    const int32_t slope = 32768 - (d * inner >> 15);
    const int32_t step = ((32768 - tt) * d >> 11) * slope;
    const int32_t value = t + ((step + (1 << 18)) >> 19);
    return (int16_t)(x < 0 ? -value : value > 32767 ? 32767 : value);
}

/* 1 / (1 + e to the -x) from 2048ths to 32768ths: |error| < 1.1 units of the result. */
static inline int16_t sc_sigmoid_q15(int16_t x)
{
    return (int16_t)((sc_tanh_q15(x) + 32768) >> 1);
}

/* The integer nearest to x * inverse (halves away from 0), clamped to lowest and highest; nan
 * gives lowest. */
static inline int32_t sc_quantise(float x, float inverse, float lowest, float highest)
{
    const float scaled = x * inverse;
    const float inside = scaled > lowest ? (scaled > highest ? highest : scaled) : lowest;
    const int32_t whole = (int32_t)inside;
    const float rest = inside - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* A function of int16, interpolated linearly in a table of its values at -32768, -32512 ... 32768. */
static inline int32_t sc_lookup_int16(const int16_t *table, int32_t x)
{
    const int32_t place = x + 32768;
    const int32_t node = place >> 8;
    return table[node] + (((table[node + 1] - table[node]) * (place & 255) + 128) >> 8);
}
