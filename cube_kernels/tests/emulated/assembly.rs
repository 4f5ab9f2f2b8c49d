//! From the CUDA C++ of CubeCL's compiler to C++: inline assembly becomes calls of functions in `machine.h`.

/// The source of a kernel for a CPU, with the entry points that `machine.cpp` calls.
pub fn portable(code: &str, shared_memory: usize) -> String {
    let mut text = String::from("#include \"machine.h\"\n");
    let mut rest = code;
    while let Some(start) = rest.find("asm") {
        let (before, from) = rest.split_at(start);
        text += before;
        let open = from.find('(').expect("operands");
        let close = matching(from, open);
        text += &call(&from[open + 1..close]);
        rest = &from[close + 1..];
    }
    text += rest;
    text + &entry(code, shared_memory)
}

/// Where the parenthesis at `open` is closed; those in strings do not count.
fn matching(text: &str, open: usize) -> usize {
    let (mut depth, mut in_string) = (0, false);
    for (at, c) in text.char_indices().skip(open) {
        match c {
            '"' => in_string = !in_string,
            '(' if !in_string => depth += 1,
            ')' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    panic!("no end of {}", &text[..text.len().min(80)]);
}

/// What stands for a statement of assembly: `"template" : "=f"(output), .. : "r"(input), ..`.
fn call(statement: &str) -> String {
    let (_, after) = statement.split_once('"').expect("a template");
    let (template, mut rest) = after.split_once('"').expect("its end");
    let mut operands = vec![];
    // Clobbers are strings without an expression.
    while let Some(open) = rest.find("\"(").map(|quote| quote + 1) {
        let close = matching(rest, open);
        operands.push(&rest[open + 1..close]);
        rest = &rest[close + 1..];
    }
    let operands = operands.join(", ");
    let mut words = template.split([' ', ';']);
    let name = words.next().expect("a name");
    let is = |start: &str| name.starts_with(start);
    if is("mma.sync.aligned.m16n8k16.row.col.f32.") {
        let name = if name.contains("bf16") { "TYPE_BF16" } else { "TYPE_F16" };
        format!("machine_multiply({name}, {operands})")
    } else if is("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32") {
        format!("machine_multiply(TYPE_TF32, {operands})")
    } else if is("ldmatrix.sync.aligned.m8n8.x4") {
        format!("machine_load_matrices({}, {operands})", i32::from(name.contains(".trans")))
    } else if is("cp.async.commit_group") {
        String::new()
    } else if is("cp.async.wait_group") {
        "machine_wait()".to_string()
    } else if is("cp.async.c") {
        let bytes = template.trim_end_matches(';').rsplit(", ").next().expect("a number of bytes");
        format!("machine_copy({operands}, {bytes})")
    } else if is("bar.arrive") || is("bar.sync") {
        let units = template.trim_end_matches(';').rsplit(", ").next().expect("a number of units");
        let name = if is("bar.sync") { "machine_meet" } else { "machine_arrive" };
        format!("{name}({operands}, {units})")
    } else if is("ex2.approx.ftz.f32") {
        format!("machine_power({operands})")
    } else {
        panic!("unknown assembly: {template}");
    }
}

/// Functions through which the machine reaches the kernel and its shared memory.
fn entry(code: &str, shared_memory: usize) -> String {
    let (_, kernel) = code.split_once("extern \"C\" __global__").expect("a kernel");
    let (signature, body) = kernel.split_once(" {").expect("a body");
    let open = signature.rfind("  ").expect("a name behind the attributes");
    let (name, parameters) = signature[open..].split_once('(').expect("parameters");
    let name = name.trim();
    let types: Vec<&str> =
        parameters.split(',').filter_map(|parameter| parameter.split_whitespace().next()).collect();
    let arguments: Vec<String> = types[..types.len() - 1]
        .iter()
        .enumerate()
        .map(|(index, name)| format!("({name}*)buffers[{index}]"))
        .collect();
    // Dynamic shared memory is an array without a length.
    let (_, shared) = body.split_once("extern __shared__").expect("shared memory");
    let (_, shared) = shared.split_once("char ").expect("its name");
    let (shared, _) = shared.split_once('[').expect("its brackets");
    let arguments = arguments.join(", ");
    format!(
        "\nalignas(128) char {shared}[{shared_memory}];\n\
         extern \"C\" char* kernel_shared() {{ return {shared}; }}\n\
         extern \"C\" size_t kernel_shared_bytes() {{ return {shared_memory}; }}\n\
         extern \"C\" void kernel_run(void** buffers, const void* info) {{ \
         {name}({arguments}, *(const info_st*)info); }}\n"
    )
}

#[test]
fn assembly_becomes_calls() {
    let copy =
        r#""cp.async.cg.shared::cta.global [%0], [%1], 16, 16;" :  : "r"(v1), "l"(v2) : "memory""#;
    assert_eq!(call(copy), "machine_copy(v1, v2, 16)");
    let power = r#""ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v3(4)) "#;
    assert_eq!(call(power), "machine_power(result, v3(4))");
    let wait = r#""cp.async.wait_group 0;" :  :  : "memory""#;
    assert_eq!(call(wait), "machine_wait()");
    let arrive = r#""bar.arrive %0, 64;" :  : "r"(v7) : "memory""#;
    assert_eq!(call(arrive), "machine_arrive(v7, 64)");
    let multiply =
        r#""mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0}, {%1};" : "=f"(d) : "r"(a)"#;
    assert_eq!(call(multiply), "machine_multiply(TYPE_TF32, d, a)");
}
