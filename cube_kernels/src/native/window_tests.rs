//! The window arithmetic of `cuda/window.cuh`, compiled for the host, against [`window`](crate::window).

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use test_support::cpp::compiler;

use crate::Axis;

/// What the compiled header gives for the lines of `questions`.
fn ask(compiler: &str, questions: &str) -> String {
    let folder = std::env::temp_dir().join(format!("burn_natten_window_{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let program = folder.join("window");
    let text = concat!(
        "#define DEVICE static inline\n",
        include_str!("cuda/window.cuh"),
        include_str!("window_tests/host.cpp"),
    );
    let source = folder.join("window.cpp");
    std::fs::write(&source, text).expect("written");
    let options = ["-std=c++17", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover"];
    let built = Command::new(compiler).args(options).arg(&source).arg("-o").arg(&program).output();
    let built = built.expect("the compiler ran before");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut running = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program was built");
    let mut input = running.stdin.take().expect("is piped");
    let questions = questions.to_string();
    let writer = std::thread::spawn(move || input.write_all(questions.as_bytes()));
    let output = running.wait_with_output().expect("the program runs");
    writer.join().expect("no panic").expect("the program reads");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert!(output.status.success(), "{}", output.status);
    String::from_utf8(output.stdout).expect("numbers")
}

/// Rows beyond a group are those of its last member, and the general code holds for what is not shifted or has no
/// stride, too.
fn check(axes: &[Axis]) {
    let Some(compiler) = compiler() else { return };
    let (mut questions, mut expected) = (String::new(), vec![]);
    for axis in axes {
        let Axis { queries, keys, origin, kernel_size, stride, is_causal, .. } = *axis;
        let causal = u8::from(is_causal);
        for (is_key, rows) in [(0, queries), (1, keys)] {
            for row in 0..rows + 3 {
                let member = row.min(rows - 1);
                let (first, count) =
                    if is_key == 1 { axis.visitors(member) } else { axis.window(member) };
                for (strided, shifted) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    if strided == 0 && stride > 1 || shifted == 0 && origin != 0 {
                        continue;
                    }
                    writeln!(
                        questions,
                        "{is_key} {causal} {strided} {shifted} {kernel_size} {stride} {origin} {queries} {keys} {row}"
                    )
                    .expect("a string");
                    expected.push((is_key, row, axis, first, first + count));
                }
            }
        }
    }
    let answers = ask(compiler, &questions);
    assert_eq!(answers.lines().count(), expected.len());
    for (answer, (is_key, row, axis, start, end)) in answers.lines().zip(expected) {
        let what = if is_key == 1 { "queries of key" } else { "keys of query" };
        assert_eq!(answer, format!("{start} {end}"), "{what} {row}: {axis:?}");
    }
}

#[test]
fn windows_are_those_of_the_definition() {
    let mut axes = vec![];
    for length in 1..=14 {
        for kernel_size in 1..=length {
            for stride in 1..=kernel_size {
                let plain = Axis::neighborhood(length, kernel_size).with_stride(stride);
                axes.extend([plain, plain.with_causal(true)]);
            }
        }
    }
    // More or fewer queries than keys, in front of the keys, among them and behind.
    for queries in 1..=7 {
        for keys in 1..=7 {
            axes.push(Axis::dense(queries, keys, false));
            let causal = Axis::dense(queries, keys, true);
            axes.extend((-9..=9).map(|origin| causal.with_origin(origin)));
        }
    }
    // Some queries of an axis.
    for (kernel_size, stride) in [(3, 1), (5, 2), (6, 6)] {
        for origin in 0..12 {
            for queries in 1..=12 - origin {
                let whole = Axis::neighborhood(12, kernel_size).with_stride(stride);
                let part = Axis { queries, ..whole.with_origin(origin as isize) };
                axes.extend([part, part.with_causal(true)]);
            }
        }
    }
    check(&axes);
}
