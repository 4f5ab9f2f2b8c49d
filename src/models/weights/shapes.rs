//! The weights that a model has, without their numbers.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor};

/// Keys and shapes as PyTorch has them, in the order of the model.
pub(super) fn of<M: Module>(model: &M) -> Vec<(String, Vec<usize>)> {
    let mut shapes = Shapes::default();
    model.visit(&mut shapes);
    shapes.found
}

/// The types of weights that have a value already, by key: buffers, which stay in f32 when the rest
/// is half, and those of a model that was used or cast.
pub(super) fn dtypes<M: Module>(model: &M) -> BTreeMap<String, DType> {
    let mut shapes = Shapes::default();
    model.visit(&mut shapes);
    shapes.dtypes
}

#[derive(Default)]
struct Shapes {
    path: Vec<String>,
    modules: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
    dtypes: BTreeMap<String, DType>,
}

impl ModuleVisitor for Shapes {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.push(name.to_owned());
        self.modules.push(container.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
        self.modules.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let mut path = self.path.clone();
        let mut shape = param.lazy_shape().to_vec();
        let module = self.modules.last().map(String::as_str);
        if let Some(name) = path.last_mut() {
            match (module, name.as_str()) {
                (Some("Struct:LayerNorm"), "gamma") => *name = "weight".to_owned(),
                (Some("Struct:LayerNorm"), "beta") => *name = "bias".to_owned(),
                // Burn keeps inputs first.
                (Some("Struct:Linear"), "weight") => shape.reverse(),
                _ => {}
            }
        }
        let key = path.join(".");
        if param.is_initialized() {
            self.dtypes.insert(key.clone(), param.val().dtype());
        }
        self.found.push((key, shape));
    }
}
