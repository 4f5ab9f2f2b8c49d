//! The sizes that the authors have published weights of.

use super::NatConfig;

/// Dilation 1 and another in turn, in levels of `depths` blocks.
pub(in crate::models) fn alternating(depths: &[usize], dilations: &[usize]) -> Vec<Vec<usize>> {
    depths
        .iter()
        .zip(dilations)
        .map(|(&depth, &dilation)| {
            (0..depth).map(|block| if block % 2 == 0 { 1 } else { dilation }).collect()
        })
        .collect()
}

/// Blocks of the levels of nearly all sizes.
const DEPTHS: [usize; 4] = [3, 4, 18, 5];

fn size(embed_dim: usize, depths: [usize; 4], first_heads: usize) -> NatConfig {
    NatConfig::new(embed_dim, depths.to_vec(), (0..4).map(|level| first_heads << level).collect())
}

impl NatConfig {
    /// All published sizes, by name.
    ///
    /// ```rust
    /// use burn_natten::models::nat::NatConfig;
    ///
    /// let names: Vec<_> = NatConfig::published().into_iter().map(|(name, _)| name).collect();
    /// assert!(names.contains(&"dinat_large_384"));
    /// ```
    pub fn published() -> [(&'static str, NatConfig); 13] {
        [
            ("nat_mini", Self::nat_mini()),
            ("nat_tiny", Self::nat_tiny()),
            ("nat_small", Self::nat_small()),
            ("nat_base", Self::nat_base()),
            ("dinat_mini", Self::dinat_mini()),
            ("dinat_tiny", Self::dinat_tiny()),
            ("dinat_small", Self::dinat_small()),
            ("dinat_base", Self::dinat_base()),
            ("dinat_large", Self::dinat_large()),
            ("dinat_large_21k", Self::dinat_large_21k()),
            ("dinat_large_384", Self::dinat_large_384()),
            ("dinat_large_21k_11x11", Self::dinat_large_21k_11x11()),
            ("dinat_large_384_11x11", Self::dinat_large_384_11x11()),
        ]
    }

    /// NAT-Mini, 20 M parameters.
    pub fn nat_mini() -> Self {
        size(64, [3, 4, 6, 5], 2).with_drop_path_rate(0.2)
    }

    /// NAT-Tiny, 28 M parameters.
    pub fn nat_tiny() -> Self {
        size(64, DEPTHS, 2).with_drop_path_rate(0.2)
    }

    /// NAT-Small, 51 M parameters.
    pub fn nat_small() -> Self {
        size(96, DEPTHS, 3)
            .with_mlp_ratio(2.0)
            .with_drop_path_rate(0.3)
            .with_layer_scale(Some(1e-5))
    }

    /// NAT-Base, 90 M parameters.
    pub fn nat_base() -> Self {
        size(128, DEPTHS, 4)
            .with_mlp_ratio(2.0)
            .with_drop_path_rate(0.5)
            .with_layer_scale(Some(1e-5))
    }

    /// DiNAT-Mini, 20 M parameters.
    pub fn dinat_mini() -> Self {
        Self::nat_mini().dilated([8, 4, 2, 1])
    }

    /// DiNAT-Tiny, 28 M parameters.
    pub fn dinat_tiny() -> Self {
        Self::nat_tiny().dilated([8, 4, 2, 1])
    }

    /// DiNAT-Small, 51 M parameters. It has no layer scales, which NAT-Small has.
    pub fn dinat_small() -> Self {
        Self::nat_small().with_layer_scale(None).dilated([8, 4, 2, 1])
    }

    /// DiNAT-Base, 90 M parameters.
    pub fn dinat_base() -> Self {
        Self::nat_base().dilated([8, 4, 2, 1])
    }

    /// DiNAT-Large at 224 x 224, 201 M parameters.
    pub fn dinat_large() -> Self {
        size(192, DEPTHS, 6).with_mlp_ratio(2.0).with_drop_path_rate(0.35).dilated([8, 4, 2, 1])
    }

    /// DiNAT-Large as it was trained on ImageNet-22K; its 21841 classes are set with
    /// [`with_num_classes`](Self::with_num_classes).
    pub fn dinat_large_21k() -> Self {
        Self::dinat_large().with_drop_path_rate(0.2)
    }

    /// DiNAT-Large at 384 x 384.
    pub fn dinat_large_384() -> Self {
        Self::dinat_large().dilated([13, 6, 3, 1])
    }

    /// [`dinat_large_21k`](Self::dinat_large_21k) with windows of 11 x 11.
    pub fn dinat_large_21k_11x11() -> Self {
        Self::dinat_large_21k().with_kernel_size(11)
    }

    /// DiNAT-Large at 384 x 384 with windows of 11 x 11.
    pub fn dinat_large_384_11x11() -> Self {
        Self::dinat_large().with_kernel_size(11)
    }

    fn dilated(self, dilations: [usize; 4]) -> Self {
        let dilations = alternating(&self.depths, &dilations);
        self.with_dilations(Some(dilations))
    }
}
