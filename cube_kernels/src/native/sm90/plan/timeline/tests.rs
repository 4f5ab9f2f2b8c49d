use super::*;

/// In microseconds, launches included.
fn end(lanes: &[&[&[u64]]], slots: usize) -> f64 {
    let lanes = lanes.iter().map(|lane| lane.iter().copied());
    (seconds(lanes, slots) * 1e6 * 1e3).round() / 1e3
}

const MICROSECOND: u64 = 1000;

#[test]
fn tiles_come_in_rounds() {
    let tiles = [MICROSECOND; 9];
    assert_eq!(end(&[&[&tiles[..8]]], 4), 2.0);
    assert_eq!(end(&[&[&tiles]], 4), 3.0);
    assert_eq!(end(&[&[]], 4), 0.0);
    assert_eq!(end(&[&[&[], &tiles]], 4), 3.0);
}

/// A long tile that comes last has nobody beside it.
#[test]
fn tiles_are_taken_in_order() {
    let of = |tiles: &[u64]| {
        let tiles: Vec<_> = tiles.iter().map(|tile| tile * MICROSECOND).collect();
        end(&[&[&tiles]], 2)
    };
    assert_eq!(of(&[4, 1, 1, 1, 1]), 4.0);
    assert_eq!(of(&[1, 1, 1, 1, 4]), 6.0);
    assert_eq!(of(&[4, 3, 2, 1, 0]), 5.0);
    assert_eq!(of(&[4, 3, 2, 1]), 5.0);
    assert_eq!(of(&[1, 2, 3, 4]), 6.0);
    assert_eq!(of(&[]), 0.0);
}

/// The second launch begins where the first ends; in another lane it begins as soon as there is room.
#[test]
fn lanes_fill_what_others_leave() {
    let (three, launch) = ([MICROSECOND; 3], DeviceModel::H200.launch * 1e6);
    assert_eq!(end(&[&[&three, &three]], 2), 4.0 + launch);
    assert_eq!(end(&[&[&three], &[&three]], 2), 3.0);
    // Slots are those of the first one until it has no more tiles.
    assert_eq!(end(&[&[&[MICROSECOND; 2]], &[&[5 * MICROSECOND]]], 1), 7.0);
}
