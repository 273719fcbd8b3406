/* Services for programs on the board: printing, counting, and memory functions that compilers may call. */
#ifndef SECATEUR_DEVICE_H
#define SECATEUR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* Text to the debugger, which is the emulator. */
void device_print(const char *text);
void device_print_unsigned(uint32_t value);
/* Eight hexadecimal digits. */
void device_print_hex(uint32_t value);

/* The time since the start in ticks of 40 ns. Under `-icount shift=6` an instruction takes 64 ns
 * exactly; see device_instructions_between. */
uint32_t device_ticks(void);

/* The instructions from the return of one device_ticks() to the call of the next. */
uint32_t device_instructions_between(uint32_t before, uint32_t after);

#endif
