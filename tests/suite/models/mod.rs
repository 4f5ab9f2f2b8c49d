//! The models of the papers: outputs and gradients of the originals, and weights from files.

mod checkpoint;
mod files;
mod golden;
mod layers;
mod originals;
mod published;
