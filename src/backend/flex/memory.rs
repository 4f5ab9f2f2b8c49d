//! Memory of results.

use num_traits::Zero;

/// Buffers from so many bytes on are asked for in large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// Zeros, in large pages where Linux has them for who asks. Allocators give memory of this size back to the system, and the system takes microseconds for each
/// page of what is new, in whichever thread comes to it first: of small pages as long as a whole backward pass computes.
pub(super) fn zeros<A: Clone + Zero>(count: usize) -> Vec<A> {
    // Comes from the system as it is, not a page touched yet.
    let zeros = vec![A::zero(); count];
    #[cfg(target_os = "linux")]
    if size_of_val(&*zeros) >= LARGE {
        ask_for_large_pages(&zeros);
    }
    zeros
}

/// To the end of the last page, which is where a neighbor begins: large pages lie across both.
#[cfg(target_os = "linux")]
fn ask_for_large_pages<A>(buffer: &[A]) {
    // SAFETY: asks for a number.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0);
    if !page.is_power_of_two() {
        return;
    }
    let range = buffer.as_ptr_range();
    let start = range.start.map_addr(|at| at.next_multiple_of(page));
    let bytes = range.end.addr().saturating_sub(start.addr());
    // SAFETY: changes the contents of no page. A system that has no large pages says so, and nothing is different.
    unsafe { libc::madvise(start.cast_mut().cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zeros() {
        for count in [0, 1, 1000, (4 << 20) / 4 - 1, (4 << 20) / 4, (9 << 20) / 4 + 3] {
            let mut some = zeros::<f32>(count);
            assert!(some.len() == count && some.iter().all(|x| *x == 0.0), "{count}");
            some.fill(1.0);
            assert!(some.iter().all(|x| *x == 1.0), "{count}");
        }
    }
}
