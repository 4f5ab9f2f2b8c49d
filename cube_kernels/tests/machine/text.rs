//! A native kernel's text as C++ for the machine: in place of the headers that hold its assembly is `cpp/device.h`, and in place of each
//! wgmma instruction a call that says what its text says.

/// The headers whose functions `device.h` has: all with assembly.
const HEADERS: [&str; 5] = [
    include_str!("../../src/native/cuda/device.cuh"),
    include_str!("../../src/native/cuda/mma.cuh"),
    include_str!("../../src/native/cuda/tma.cuh"),
    include_str!("../../src/native/sm90/cuda/wgmma.cuh"),
    include_str!("../../src/native/sm100/cuda/tcgen05.cuh"),
];

/// What the machine calls, and asks for the bytes of the arguments.
fn entry(name: &str) -> String {
    format!(
        "\n#ifndef CTAS\n#define CTAS 1\n#endif\n\
         extern \"C\" {{\n\
         extern const char machine_entry[] = \"{name}\";\n\
         extern const unsigned machine_ctas = CTAS;\n\
         void machine_kernel(void** arguments) {{ m_call({name}, arguments); }}\n\
         unsigned machine_sizes(unsigned* sizes) {{ return m_sizes({name}, sizes); }}\n\
         }}\n"
    )
}

/// The program of a kernel with this entry function.
pub fn program(code: &str, name: &str) -> String {
    let mut text = code.replace("extern __shared__", "extern");
    for (index, header) in HEADERS.into_iter().enumerate() {
        let place = if index == 0 { "#include \"device.h\"\n" } else { "" };
        assert!(index > 0 || text.contains(header), "the text of {name} has no device.cuh");
        text = text.replace(header, place);
    }
    let text = products(&text) + &entry(name);
    assert!(!text.contains("asm"), "{name} has assembly outside of the headers");
    text
}

/// With every function of one wgmma instruction as a call.
fn products(text: &str) -> String {
    const BEGIN: &str = "DEVICE void wgmma_";
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(BEGIN) {
        result += &rest[..at];
        let end = at + rest[at..].find("\n}\n").expect("a function ends") + 3;
        result += &product(&rest[at..end]);
        rest = &rest[end..];
    }
    result + rest
}

/// One of them. What its text leaves open is asserted to be as the machine takes it.
fn product(function: &str) -> String {
    let (head, body) = function.split_once(" {\n").expect("a body");
    let (_, instruction) = body.split_once("wgmma.mma_async.sync.aligned.").expect("a wgmma");
    let (instruction, lists) = instruction.split_once(';').expect("one instruction");
    let (shape, operands) = instruction.split_once(' ').expect("operands");
    let (extents, types) = shape.split_once(".f32.").expect("sums are f32");
    let extents = extents.strip_prefix("m64n").expect("64 rows");
    let (n, depth) = extents.split_once('k').expect("a depth");
    let (n, depth): (usize, usize) = (n.parse().expect("columns"), depth.parse().expect("depth"));
    let (kind, bits) = match types {
        "f16.f16" => ("KIND_F16", 16),
        "bf16.bf16" => ("KIND_BF16", 16),
        "e5m2.e5m2" => ("KIND_E5M2", 8),
        _ => panic!("operands of {types}"),
    };
    assert_eq!(depth * bits, 256, "{shape}");

    // The lists of operands: accumulators, a, b, whether to add, signs and transpositions.
    let count = n / 2;
    let numbers = |range: std::ops::Range<usize>| {
        let all: Vec<_> = range.map(|i| format!("%{i}")).collect();
        format!("{{{}}}", all.join(", "))
    };
    let operands = operands.strip_prefix(&numbers(0..count)).expect("accumulators in order");
    let in_registers = operands.contains('{');
    let (a, next) = match in_registers {
        true => (numbers(count..count + 4), count + 4),
        false => (format!("%{count}"), count + 1),
    };
    let operands = operands.strip_prefix(&format!(", {a}, %{next}, ")).expect("a and b");
    let (adds, tail) = operands.split_once(", ").expect("whether to add");
    let by_argument = adds == "p";
    let setp = format!("setp.ne.b32 p, %{}, 0;", next + 1);
    assert_eq!(by_argument, body.contains(&setp), "{function}");
    let transposed = match (tail, in_registers) {
        ("1, 1", true) if bits == 8 => [0, 0],
        ("1, 1, 0", true) | ("1, 1, 0, 0", false) => [0, 0],
        ("1, 1, 1", true) => [0, 1],
        ("1, 1, 1, 1", false) => [1, 1],
        _ => panic!("signs and transpositions {tail}"),
    };

    // What C++ hands to them.
    let outputs: Vec<_> = (0..count).map(|i| format!("\"+f\"(d[{i}])")).collect();
    let a = if in_registers { "\"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3)" } else { "\"l\"(a)" };
    let accumulate = if by_argument { ", \"r\"(accumulate)" } else { "" };
    let inputs = format!(": {} : {a}, \"l\"(b){accumulate});", outputs.join(", "));
    assert!(lists.contains(&inputs), "{function}");

    // Registers by reference: the machine watches them until the product is done.
    let head = ["a0", "a1", "a2", "a3"].iter().fold(head.to_string(), |head, a| {
        head.replace(&format!("u32 {a}"), &format!("const u32& {a}"))
    });
    let (registers, a) = match in_registers {
        true => ("{&a0, &a1, &a2, &a3}", "registers, 0"),
        false => ("{}", "nullptr, a"),
    };
    let accumulate = if by_argument { "accumulate" } else { adds };
    let [transposed_a, transposed_b] = transposed;
    format!(
        "{head} {{\n  \
         static const Wgmma of = {{{n}, {depth}, {kind}, {transposed_a}, {transposed_b}}};\n  \
         const u32* const registers[4] = {registers};\n  \
         m_wgmma(&of, d, {a}, b, {accumulate});\n  (void)registers;\n}}\n"
    )
}
