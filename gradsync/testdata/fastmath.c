// A shared library that leaves flush-to-zero on in the thread that loads it,
// as GCC before 13 makes of any library that is linked with -ffast-math. Newer
// ones do not, so it does the same itself.
__attribute__((constructor)) static void flush_to_zero(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 1u << 15 | 1u << 6);
#elif defined(__aarch64__)
  __builtin_aarch64_set_fpcr(__builtin_aarch64_get_fpcr() | 1u << 24);
#endif
}
