# What the scripts of this folder share.

# Every backend, for lints and documentation. They link nothing, and DOCS_RS has CubeCL's build
# scripts look for no LLVM: `rocm` wants LLVM's linker as a library, which not every LLVM has.
every_feature=cpu,cuda,wgpu,vulkan,metal,rocm,fusion,autotune,persistence,optim,train,models,profiler

# What the CubeCL tests and the compile gate are built with. One set for both crates and both
# scripts: with other packages or features Burn and CubeCL would be built again.
cube=(-p burn-natten -p burn-natten-kernels --features cpu,cuda,optim,profiler)

target="${CARGO_TARGET_DIR:-$PWD/target}"

# Runs a command, and keeps its time for the table at the end.
times=()
step() {
  echo "== $*"
  local start=$SECONDS
  "$@"
  times+=("$(printf '%6d s  %s' $((SECONDS - start)) "$*")")
}

# Runs two commands at once; lines of the second begin with its name.
side_by_side() {
  "$1" &
  local first=$! is_right=1
  ("$2" 2>&1 | sed --unbuffered "s/^/$2: /") &
  local second=$!
  wait "$first" || is_right=0
  wait "$second" || is_right=0
  [ $is_right = 1 ]
}

# Prints the table. Where a step has failed, it is that of the steps before.
print_times() {
  printf '%s\n' "${times[@]}" "$(printf '%6d s  in all' "$SECONDS")"
}
