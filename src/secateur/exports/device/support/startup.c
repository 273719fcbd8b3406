/* From reset to main() on the board MPS2 AN386, its clock, and semihosting. */
#include "device.h"

extern uint32_t device_data_begin[], device_data_end[], device_data_stored[];
extern uint32_t device_bss_begin[], device_bss_end[], device_stack_top[];
int main(void);
void device_reset(void);

#define CPACR (*(volatile uint32_t *)0xE000ED88u)
#define SYSTICK_CONTROL (*(volatile uint32_t *)0xE000E010u)
#define SYSTICK_RELOAD (*(volatile uint32_t *)0xE000E014u)
#define SYSTICK_CURRENT (*(volatile uint32_t *)0xE000E018u)
#define SYSTICK_MASK 0x00FFFFFFu

static volatile uint32_t turns; /* of the 24-bit counter */

static int semihosting(int operation, const void *argument)
{
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory", "cc");
    return r0;
}

static void leave(int code)
{
    /* SYS_EXIT_EXTENDED with ADP_Stopped_ApplicationExit. */
    const uint32_t block[2] = {0x20026u, (uint32_t)code};
    for (;;) (void)semihosting(0x20, block);
}

static void on_fault(void)
{
    device_print("hard fault\n");
    leave(99);
}

static void on_systick(void)
{
    turns = turns + 1u;
}

void device_print(const char *text)
{
    (void)semihosting(0x04, text);
}

void device_print_unsigned(uint32_t value)
{
    char digits[11];
    int place = 10;
    digits[10] = '\0';
    do {
        digits[--place] = (char)('0' + (char)(value % 10u));
        value /= 10u;
    } while (value);
    device_print(digits + place);
}

void device_print_hex(uint32_t value)
{
    char digits[9];
    int place;
    for (place = 7; place >= 0; place--, value >>= 4) digits[place] = "0123456789abcdef"[value & 15u];
    digits[8] = '\0';
    device_print(digits);
}

uint32_t device_ticks(void)
{
    uint32_t before, ticks;
    do {
        before = turns;
        ticks = SYSTICK_MASK - SYSTICK_CURRENT;
    } while (before != turns);
    return (before << 24) + ticks;
}

uint32_t device_instructions_between(uint32_t before, uint32_t after)
{
    /* The difference of two consecutive readings is the cost of reading. */
    const uint32_t first = device_ticks(), second = device_ticks();
    const uint32_t ticks = (after - before) - (second - first);
    /* 40 ns a tick, 64 ns an instruction; halves up, without a product that overflows. */
    return ticks / 8u * 5u + (ticks % 8u * 5u + 4u) / 8u;
}

void device_reset(void)
{
    uint32_t *to;
    const uint32_t *from = device_data_stored;
    CPACR |= 0xFu << 20; /* the floating-point unit, before code that may use it */
    __asm__ volatile("dsb\n\tisb" ::: "memory");
    for (to = device_data_begin; to < device_data_end;) *to++ = *from++;
    for (to = device_bss_begin; to < device_bss_end;) *to++ = 0u;
    SYSTICK_RELOAD = SYSTICK_MASK;
    SYSTICK_CURRENT = 0u;
    SYSTICK_CONTROL = 7u; /* on, with an interrupt at each turn, at the clock of the processor */
    leave(main());
}

typedef void (*handler)(void);

__attribute__((used, section(".vectors"))) static const struct {
    uint32_t *stack;
    handler handlers[15];
} vectors = {
    device_stack_top,
    {device_reset, on_fault, on_fault, on_fault, on_fault, on_fault, 0, 0, 0, 0, on_fault, on_fault, 0,
     on_fault, on_systick},
};
