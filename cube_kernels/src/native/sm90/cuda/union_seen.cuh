// Keys that a query sees of all that are listed: those before this one.
DEVICE int keys_before(int query, int keys, int origin, int step) {
  if (!CAUSAL) return keys;
  const int at = query + origin;
  if (at < 0) return 0;
  const int seen = step == 1 ? at + 1 : at / step + 1;
  return seen < keys ? seen : keys;
}
