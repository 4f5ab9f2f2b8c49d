use std::iter::repeat_n;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor};

use super::lengths::{numbers, ranges, total};
use crate::PerAxis;

/// The spaces of a packed batch: how long the axes of each image, video or sequence are, slowest first. Their tokens lie row-major, one
/// space behind the other.
///
/// ```rust
/// use burn_natten::Spaces;
///
/// let images = Spaces::new([[8, 6], [16, 12]]);
/// assert_eq!((images.len(), images.tokens()), (2, 48 + 192));
/// assert!(images.ranges().eq([0..48, 48..240]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spaces<const N: usize> {
    spaces: Arc<[[usize; N]]>,
    windows: Option<Arc<[Window<N>]>>,
}

/// The window of one space of a packed batch: what
/// [`NeighborhoodOptions`](crate::NeighborhoodOptions) say for all of them.
///
/// ```rust
/// use burn_natten::Window;
///
/// let window = Window::<2>::new(7).with_dilation([1, 4]);
/// // No larger than the space: of 5 x 20 tokens, all along the one axis.
/// assert_eq!(window.within([5, 20]), Window::new([5, 7]).with_dilation([1, 2]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window<const N: usize> {
    pub(crate) kernel_size: [usize; N],
    pub(crate) stride: [usize; N],
    pub(crate) dilation: [usize; N],
}

impl<const N: usize> Window<N> {
    /// A window of `kernel_size` keys along each axis, with a stride and a dilation of 1. Along an axis of one token it has one key.
    pub fn new(kernel_size: impl Into<PerAxis<N, usize>>) -> Self {
        Self { kernel_size: kernel_size.into().0, stride: [1; N], dilation: [1; N] }
    }

    /// The same with this many neighboring queries that share a window.
    pub fn with_stride(self, stride: impl Into<PerAxis<N, usize>>) -> Self {
        Self { stride: stride.into().0, ..self }
    }

    /// The same with this distance between the keys of a window.
    pub fn with_dilation(self, dilation: impl Into<PerAxis<N, usize>>) -> Self {
        Self { dilation: dilation.into().0, ..self }
    }

    /// Keys along each axis.
    pub fn kernel_size(self) -> [usize; N] {
        self.kernel_size
    }

    /// Neighboring queries that share a window, along each axis.
    pub fn stride(self) -> [usize; N] {
        self.stride
    }

    /// Distance between the keys, along each axis.
    pub fn dilation(self) -> [usize; N] {
        self.dilation
    }

    /// The same, with fewer keys where an axis is shorter than the window, and then a stride and a dilation that fit.
    pub fn within(mut self, space: [usize; N]) -> Self {
        for (axis, length) in space.into_iter().enumerate() {
            let length = length.max(1);
            let kernel_size = &mut self.kernel_size[axis];
            *kernel_size = (*kernel_size).min(length);
            self.stride[axis] = self.stride[axis].min(*kernel_size);
            self.dilation[axis] = self.dilation[axis].min(length / (*kernel_size).max(1));
        }
        self
    }
}

impl<const N: usize> Spaces<N> {
    /// Spaces of these lengths. Those with an axis of length 0 have no tokens.
    pub fn new(spaces: impl Into<Vec<[usize; N]>>) -> Self {
        Self { spaces: spaces.into().into(), windows: None }
    }

    /// The same with a window for each space, in place of the one in the options of the operator. The operators refuse them if there
    /// are not as many as spaces.
    ///
    /// ```rust
    /// use burn_natten::{Spaces, Window};
    ///
    /// let sizes = [[8, 6], [1, 12]];
    /// // 7 x 7, or what there is.
    /// let windows = sizes.map(|size| Window::new(7).within(size));
    /// let images = Spaces::new(sizes).with_windows(windows);
    /// # assert_eq!(images.len(), 2);
    /// ```
    pub fn with_windows(self, windows: impl Into<Vec<Window<N>>>) -> Self {
        Self { windows: Some(windows.into().into()), ..self }
    }

    /// Number of spaces.
    pub fn len(&self) -> usize {
        self.spaces.len()
    }

    /// Whether there is no space.
    pub fn is_empty(&self) -> bool {
        self.spaces.is_empty()
    }

    /// The lengths of their axes.
    pub fn as_slice(&self) -> &[[usize; N]] {
        &self.spaces
    }

    /// Their own windows, if they have any.
    pub fn windows(&self) -> Option<&[Window<N>]> {
        self.windows.as_deref()
    }

    /// Tokens of all spaces.
    pub fn tokens(&self) -> usize {
        total(self.lengths())
    }

    /// The tokens of each space among the packed ones.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        ranges(self.lengths())
    }

    fn lengths(&self) -> impl Iterator<Item = usize> + '_ {
        self.spaces.iter().map(|space| space.iter().copied().fold(1, usize::saturating_mul))
    }

    /// Number of the space that each token is of, `[total]`.
    pub fn sequences(&self, device: &Device) -> Tensor<1, Int> {
        numbers(
            self.lengths().enumerate().flat_map(|(number, length)| repeat_n(number, length)),
            device,
        )
    }

    /// Where each token stands in its space, `[total, N]`, slowest axis first: for rotary embeddings.
    pub fn positions(&self, device: &Device) -> Tensor<2, Int> {
        let coordinates = |space: &[usize; N], token: usize| {
            let mut rest = token;
            let mut at = [0; N];
            for (at, length) in at.iter_mut().zip(space).rev() {
                (*at, rest) = (rest % length, rest / length);
            }
            at
        };
        let of = |space: &[usize; N]| {
            let space = *space;
            (0..space.iter().product()).flat_map(move |token| coordinates(&space, token))
        };
        numbers(self.spaces.iter().flat_map(of), device).reshape([self.tokens(), N])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_know_their_space_and_their_place() {
        let device = Device::flex();
        let spaces = Spaces::new([[2, 3], [0, 5], [1, 2]]);
        let sequences = spaces.sequences(&device).into_data().convert::<i64>();
        assert_eq!(sequences.try_to_vec::<i64>().expect("is i64"), [0, 0, 0, 0, 0, 0, 2, 2]);
        let positions = spaces.positions(&device);
        assert_eq!(positions.dims(), [8, 2]);
        let positions = positions.into_data().convert::<i64>();
        assert_eq!(
            positions.try_to_vec::<i64>().expect("is i64"),
            [0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2, 0, 0, 0, 1]
        );
        assert_eq!(Spaces::<2>::new([]).positions(&device).dims(), [0, 2]);
    }

    #[test]
    fn windows_shrink_to_their_space() {
        let window = Window::<1>::new(7).with_stride(4).with_dilation(3);
        let of = |length| {
            let Window { kernel_size, stride, dilation } = window.within([length]);
            [kernel_size[0], stride[0], dilation[0]]
        };
        assert_eq!(
            [21, 20, 13, 7, 3, 1, 0].map(of),
            [[7, 4, 3], [7, 4, 2], [7, 4, 1], [7, 4, 1], [3, 3, 1], [1, 1, 1], [1, 1, 1]]
        );
    }
}
