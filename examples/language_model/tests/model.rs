//! The model itself, with either attention.

use burn::tensor::{Device, Int, Tensor, TensorData};
use clap::Parser;

use super::small;
use crate::alone::alone;
use crate::cli::{Cli, Command, Kind};
use crate::model::LanguageModel;

fn model(kind: Kind, more: &[&str], context: usize) -> LanguageModel {
    let arguments = ["language_model", "train", "--window", "6"].into_iter().chain(small());
    let arguments = arguments.chain(more.iter().copied());
    let Command::Train(args) = Cli::try_parse_from(arguments).expect("is fine").command else {
        panic!("is a training");
    };
    let mut model = args.model;
    model.layers = 2;
    model.config(kind, context).expect("is fine").init(&Device::flex())
}

fn bytes(count: usize) -> Vec<i64> {
    (0..count).map(|place| (place * place * 31 + place * 7) as i64 % 256).collect()
}

fn tensor(bytes: &[i64]) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(bytes.to_vec(), [1, bytes.len()]), &Device::flex())
}

#[test]
fn decoding_gives_the_rows_of_the_whole() {
    let _alone = alone();
    for (kind, more) in
        [(Kind::Sparse, &[][..]), (Kind::Sparse, &["--query-tile", "4"]), (Kind::Dense, &[])]
    {
        let model = model(kind, more, 60);
        let bytes = bytes(60);
        let whole = model.forward(tensor(&bytes));
        let mut memory = model.memory();
        let mut rows = Vec::new();
        for range in [0..33, 33..34, 34..35, 35..52].into_iter().chain((52..60).map(|i| i..i + 1)) {
            rows.push(model.forward_cached(tensor(&bytes[range]), &mut memory));
        }
        let rows = Tensor::cat(rows, 1);
        assert!(rows.all_close(whole, None, Some(1e-5)), "{kind:?} {more:?}");
    }
}

#[test]
fn later_bytes_move_no_earlier_row() {
    let _alone = alone();
    for kind in [Kind::Sparse, Kind::Dense] {
        let model = model(kind, &[], 60);
        let mut bytes = bytes(60);
        let rows = |bytes: &[i64]| -> Vec<f32> {
            model.forward(tensor(bytes)).into_data().try_to_vec().expect("is f32")
        };
        let before = rows(&bytes);
        bytes[40] = (bytes[40] + 1) % 256;
        let after = rows(&bytes);
        let (earlier, later) = (40 * 256, 41 * 256);
        assert!(before[..earlier] == after[..earlier], "{kind:?}");
        assert!(before[earlier..later] != after[earlier..later], "{kind:?}");
        assert!(before[59 * 256..] != after[59 * 256..], "{kind:?}");
    }
}
