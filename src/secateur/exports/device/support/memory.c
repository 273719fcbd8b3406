/* C compilers may call these for loops and assignments, even where there is no library. */
#include <stddef.h>

void *memcpy(void *restrict to, const void *restrict from, size_t count);
void *memmove(void *to, const void *from, size_t count);
void *memset(void *to, int value, size_t count);

/* A loop of volatile accesses is one that the compiler does not replace by a call of itself. */
__attribute__((weak)) void *memcpy(void *restrict to, const void *restrict from, size_t count)
{
    volatile unsigned char *t = to;
    const unsigned char *f = from;
    while (count--) *t++ = *f++;
    return to;
}

__attribute__((weak)) void *memmove(void *to, const void *from, size_t count)
{
    volatile unsigned char *t = to;
    const unsigned char *f = from;
    if (t <= f) return memcpy(to, from, count);
    while (count--) t[count] = f[count];
    return to;
}

__attribute__((weak)) void *memset(void *to, int value, size_t count)
{
    volatile unsigned char *t = to;
    while (count--) *t++ = (unsigned char)value;
    return to;
}
