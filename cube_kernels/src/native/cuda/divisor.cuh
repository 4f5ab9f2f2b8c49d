// Division by a number that is the same for all, of numbers below 2^31: see divisor.rs.

struct Divisor { u32 value, magic, shift, unused; };

DEVICE int divide(int n, const Divisor& by) { return (int)(((u32)((u64)(u32)n * by.magic >> 32) + (u32)n) >> by.shift); }

// Takes the remainder of n, and leaves the quotient in it.
DEVICE int split(int& n, const Divisor& by) {
  const int quotient = divide(n, by), remainder = n - quotient * (int)by.value;
  n = quotient;
  return remainder;
}
