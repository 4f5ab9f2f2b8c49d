//! How to use neighborhood attention, and what to expect of it: one page a topic.
//!
//! | page | answers |
//! |---|---|
//! | [`windows`] | Which keys does a query see? |
//! | [`choosing`] | Which window, stride and dilation should a model have, and what do they cost? |
//! | [`position_bias`] | How do scores depend on where a key stands? |
//! | [`attention_weights`] | What does a query attend to, and how is that changed? |
//! | [`block_sparse`] | How does a query see blocks of keys from a list? |
//! | [`extra_tokens`] | How do text, class tokens or a second window take part? |
//! | [`native_sparse_attention`] | How do long sequences attend to what matters? |
//! | [`packed`] | How are images, videos or texts of different sizes attended in one call? |
//! | [`multi_gpu`] | How does attention run on several devices? |
//! | [`determinism`] | When do results repeat bit by bit? |
//! | [`memory`] | What is kept, and what is allocated? |
//! | [`precision`] | Which element types are there, and how large are errors? |
//! | [`errors`] | What is refused, and how does it say so? |
//! | [`context`] | Which settings are there, and for how long do they hold? |
//! | [`training`] | What is a training step made of, and what should it be built with? |
//! | [`graphs`] | How are launches recorded once, and replayed as one? |
//! | `models` | Which models are there, and how do they get their weights? (feature `models`) |
//!
//! The pages hold no code but their examples, which run as tests.

pub mod attention_weights {
    #![doc = include_str!("attention_weights.md")]
    #![doc = include_str!("../../docs/pictures/attention-weights.svg")]
}
pub mod block_sparse {
    #![doc = include_str!("block_sparse.md")]
    #![doc = include_str!("../../docs/pictures/block-lists.svg")]
}
pub mod choosing {
    #![doc = include_str!("choosing.md")]
    #![doc = include_str!("../../docs/pictures/tile-map.svg")]
}
pub mod context {
    #![doc = include_str!("context.md")]
}
pub mod determinism {
    #![doc = include_str!("determinism.md")]
}
pub mod errors {
    #![doc = include_str!("errors.md")]
}
pub mod extra_tokens {
    #![doc = include_str!("extra_tokens.md")]
}
pub mod graphs {
    #![doc = include_str!("graphs.md")]
}
pub mod memory {
    #![doc = include_str!("memory.md")]
}
#[cfg(feature = "models")]
pub mod models {
    #![doc = include_str!("models.md")]
}
pub mod multi_gpu {
    #![doc = include_str!("multi_gpu.md")]
}
pub mod native_sparse_attention {
    #![doc = include_str!("native_sparse_attention.md")]
    #![doc = include_str!("../../docs/pictures/native-sparse.svg")]
}
pub mod packed {
    #![doc = include_str!("packed.md")]
}
pub mod position_bias {
    #![doc = include_str!("position_bias.md")]
}
pub mod precision {
    #![doc = include_str!("precision.md")]
}
pub mod training {
    #![doc = include_str!("training.md")]
}
pub mod windows {
    #![doc = include_str!("windows.md")]
    #![doc = include_str!("../../docs/pictures/windows-1d.svg")]
    #![doc = include_str!("windows_more_axes.md")]
    #![doc = include_str!("../../docs/pictures/queries-2d.svg")]
    #![doc = include_str!("windows_planes.md")]
    #![doc = include_str!("../../docs/pictures/planes-3d.svg")]
}
