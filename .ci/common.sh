# What the scripts of this folder share.

# Every feature that code here knows, for lints and documentation: `persistence` is Burn's alone, and a whole database. They link nothing,
# and DOCS_RS has CubeCL's build scripts look for no LLVM: `rocm` wants LLVM's linker as a library, which not every LLVM has.
every_feature=cpu,cuda,wgpu,vulkan,metal,rocm,fusion,autotune,optim,train,models,profiler

# What the CubeCL tests and the compile gate are built with. One set for both crates and both
# scripts: with other packages or features Burn and CubeCL would be built again. Their time goes into kernels
# and what compiles them: to optimise the library around it as well takes longer than it saves.
cube=(
  --config profile.dev.package.burn-natten.opt-level=0
  -p burn-natten -p burn-natten-kernels --features cpu,cuda,optim,profiler
)

target="${CARGO_TARGET_DIR:-$PWD/target}"

# Runs a command, and keeps its time for the table at the end.
times=()
step() {
  echo "== $*"
  local start=$SECONDS
  "$@"
  times+=("$(printf '%6d s  %s' $((SECONDS - start)) "$*")")
}

# The cores of this shell, as `0-3,8`.
own_cores() {
  local cores
  cores="$(taskset --cpu-list --pid $$)"
  echo "${cores##*: }"
}

# Runs a command on one core, and leaves the others to what runs beside it. CubeCL's runtime for the CPU binds a worker to each core
# that it may use, and workers that wait for another spin: with one of them the tests need a third of the time.
on_one_core() {
  local cores
  cores="$(own_cores)"
  taskset --cpu-list "${cores%%[,-]*}" "$@"
}

# Runs a command on all cores but that one, or on it where there is no other.
on_other_cores() {
  local cores
  cores="$(own_cores)"
  case "$cores" in
    *[,-]*) taskset --cpu-list "$(without_first "$cores")" "$@" ;;
    *) "$@" ;;
  esac
}

# A list of cores, as `0-3,8`, without its first.
without_first() {
  local first="${1%%,*}" rest=""
  [ "$first" = "$1" ] || rest="${1#*,}"
  case "$first" in
    *-*) echo "$((${first%-*} + 1))-${first#*-}${rest:+,$rest}" ;;
    *) echo "$rest" ;;
  esac
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
