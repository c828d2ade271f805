//! What training changes: the tensors of a network by name.
//!
//! A network's constructor is the only list of its parameters. [`Parameters`] stands between it and the source of first
//! values, keeps what the constructor asks for, and hands it out as variables or, where frozen, as constants. Layers
//! with variables are differentiable and read them at each call, so that the network is built once and follows every
//! change of its parameters.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// The role of a tensor, for optimisers that treat roles differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParameterKind {
    /// Of a convolution or linear layer.
    Weight,
    /// Of a convolution or linear layer.
    Bias,
    /// Weight or bias of a batch norm that is trained.
    Norm,
    /// Statistics of a batch norm, and weight and bias of one that is fixed: part of the model, never of an optimiser.
    Buffer,
}

/// A tensor of a network. A clone is the same tensor.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// torchvision's name, such as `backbone.body.layer1.0.conv1.weight`.
    pub name: String,
    /// The values. To change them is to change the network.
    pub var: Var,
    /// Its role.
    pub kind: ParameterKind,
    /// Whether it gets gradients.
    pub trainable: bool,
}

/// What stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freezing {
    /// Prefixes of names that are frozen.
    frozen: Vec<String>,
    /// Prefixes of names whose norms are fixed.
    fixed_norms: Vec<String>,
}

impl Freezing {
    /// torchvision's `trainable_backbone_layers`: of the parts of the backbone's body, the last `parts` are trained. Those of
    /// a ResNet are its four stages and its stem; 3 is torchvision's default, 5 is all. Fixed norms of the model's
    /// description are never trained.
    pub fn backbone(config: &ModelConfig, parts: usize) -> Self {
        let frozen = config.backbone_parts().into_iter().skip(parts).flatten().collect();
        Self { frozen, fixed_norms: config.fixed_norms() }
    }

    /// Freezes all names that start with `prefix`, too.
    #[must_use]
    pub fn and(mut self, prefix: &str) -> Self {
        self.frozen.push(prefix.to_owned());
        self
    }

    fn freezes(&self, name: &str) -> bool {
        self.frozen.iter().any(|prefix| name.starts_with(prefix))
    }

    fn fixes_norm(&self, name: &str) -> bool {
        self.fixed_norms.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The tensors of a network, ordered by name.
///
/// # Example
/// ```
/// use candle_core::Device;
/// use candle_detection::backbone;
/// use candle_detection::train::{Freezing, Parameters};
/// use candle_detection::{RandomSource, config};
///
/// let model = config::get("maskrcnn_resnet50_fpn")?;
/// let parameters = Parameters::new(Freezing::backbone(&model, 3));
/// let weights = parameters.var_builder(RandomSource { seed: 1 }.var_builder(&Device::Cpu));
/// let backbone = backbone::build(&weights.pp("backbone"), &model.body, &model.neck)?;
/// let trained = parameters.trainable();
/// assert!(trained.iter().any(|p| p.name == "backbone.body.layer2.0.conv1.weight"));
/// assert!(!trained.iter().any(|p| p.name == "backbone.body.layer1.0.conv1.weight"));
/// # Ok::<(), candle_detection::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Parameters {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    freezing: Freezing,
    entries: Mutex<BTreeMap<String, Parameter>>,
    /// Names in the order in which the constructor asked for them.
    built: Mutex<Vec<String>>,
}

impl Parameters {
    /// No tensors yet: building a network on [`Self::var_builder`] adds them.
    pub fn new(freezing: Freezing) -> Self {
        let shared = Shared { freezing, entries: Mutex::default(), built: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// What to hand to the constructor of the network; first values are those of `source`. A tensor asked for again is
    /// the same one, so several networks can share parameters.
    pub fn var_builder(&self, source: VarBuilder<'static>) -> VarBuilder<'static> {
        let device = source.device().clone();
        let backend: Box<dyn SimpleBackend> =
            Box::new(Backend { shared: self.shared.clone(), source });
        VarBuilder::new_with_args(backend, DType::F32, &device)
    }

    /// The same tensors as constants, for a network that infers: one built on this has the values of now, folded and
    /// laid out once, whatever training does later.
    pub fn constants(&self, device: &Device) -> VarBuilder<'static> {
        let backend: Box<dyn SimpleBackend> = Box::new(Constants(self.shared.clone()));
        VarBuilder::new_with_args(backend, DType::F32, device)
    }

    /// All tensors, by ascending name.
    pub fn all(&self) -> Vec<Parameter> {
        self.shared.entries().values().cloned().collect()
    }

    /// Those that get gradients, by ascending name.
    pub fn trainable(&self) -> Vec<Parameter> {
        self.shared.entries().values().filter(|parameter| parameter.trainable).cloned().collect()
    }

    /// Places of `parameters` in the order in which the constructor asked for them. That is about the order of the forward
    /// pass, as constructors go along with it.
    pub(super) fn as_built(&self, parameters: &[Parameter]) -> Vec<usize> {
        let built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
        let order: HashMap<&str, usize> =
            built.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let mut places: Vec<usize> = (0..parameters.len()).collect();
        places.sort_by_key(|place| order.get(parameters[*place].name.as_str()));
        places
    }

    /// Statistics of norms that batches change, by ascending name.
    pub(super) fn running(&self) -> Vec<Parameter> {
        let is_running = |p: &&Parameter| p.kind == ParameterKind::Buffer && self.shared.changes(p);
        self.shared.entries().values().filter(is_running).cloned().collect()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<Parameter> {
        self.shared.entries().get(name).cloned()
    }

    /// Writes all tensors as a safetensors file with torchvision's names, which every loader of weights reads. The file
    /// appears at `path` when it is complete, and not before.
    ///
    /// # Errors
    /// [`Error::Io`], and those of candle.
    pub fn save(&self, path: &Path) -> Result<()> {
        let tensors: HashMap<String, Tensor> = self
            .all()
            .into_iter()
            .map(|parameter| (parameter.name, parameter.var.as_detached_tensor()))
            .collect();
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().unwrap_or_default());
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let io = |source| Error::Io { path: path.to_owned(), source };
        let written = candle_core::safetensors::save(&tensors, &temporary)
            .map_err(Error::from)
            .and_then(|()| std::fs::rename(&temporary, path).map_err(io));
        if written.is_err() {
            // The first failure is the one to report; what can't be removed is no news.
            let _ = std::fs::remove_file(&temporary);
        }
        written
    }
}

impl Shared {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Parameter>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Layers ask for a norm's statistics before its weight and bias, which tells norms from other layers.
    fn kind(&self, name: &str) -> ParameterKind {
        let (prefix, last) = name.rsplit_once('.').unwrap_or(("", name));
        match last {
            "running_mean" | "running_var" | "num_batches_tracked" => ParameterKind::Buffer,
            _ if self.entries().contains_key(&format!("{prefix}.running_mean")) => {
                if self.freezing.fixes_norm(name) {
                    ParameterKind::Buffer
                } else {
                    ParameterKind::Norm
                }
            }
            "bias" => ParameterKind::Bias,
            _ => ParameterKind::Weight,
        }
    }

    /// Whether the tensor is handed out as a variable: those that get gradients, and statistics that batches change.
    fn changes(&self, parameter: &Parameter) -> bool {
        let Parameter { name, kind, trainable, .. } = parameter;
        let frozen = self.freezing.freezes(name) || self.freezing.fixes_norm(name);
        *trainable || (*kind == ParameterKind::Buffer && !frozen)
    }
}

struct Backend {
    shared: Arc<Shared>,
    source: VarBuilder<'static>,
}

impl Backend {
    fn serve(
        &self,
        name: &str,
        first: impl FnOnce() -> candle_core::Result<Tensor>,
    ) -> candle_core::Result<Tensor> {
        let known = self.shared.entries().get(name).cloned();
        let parameter = match known {
            Some(parameter) => parameter,
            None => {
                let kind = self.shared.kind(name);
                let trainable =
                    kind != ParameterKind::Buffer && !self.shared.freezing.freezes(name);
                let var = Var::from_tensor(&first()?)?;
                let parameter = Parameter { name: name.to_owned(), var, kind, trainable };
                self.shared.entries().insert(name.to_owned(), parameter.clone());
                let mut built = self.shared.built.lock().unwrap_or_else(PoisonError::into_inner);
                built.push(name.to_owned());
                parameter
            }
        };
        if self.shared.changes(&parameter) {
            Ok(parameter.var.as_tensor().clone())
        } else {
            Ok(parameter.var.as_detached_tensor())
        }
    }
}

impl SimpleBackend for Backend {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        hint: Init,
        _: DType,
        _: &Device,
    ) -> candle_core::Result<Tensor> {
        let tensor = self.serve(name, || self.source.get_with_hints(shape.clone(), name, hint))?;
        of_shape(tensor, shape, name)
    }

    fn get_unchecked(&self, name: &str, dtype: DType, _: &Device) -> candle_core::Result<Tensor> {
        self.serve(name, || self.source.get_unchecked_dtype(name, dtype))
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.shared.entries().contains_key(name) || self.source.contains_tensor(name)
    }
}

/// The tensor, if it has the shape that a layer asks for.
fn of_shape(tensor: Tensor, expected: Shape, name: &str) -> candle_core::Result<Tensor> {
    if *tensor.shape() == expected {
        return Ok(tensor);
    }
    let msg = format!("parameter `{name}` belongs to a layer of another size");
    Err(candle_core::Error::UnexpectedShape { msg, expected, got: tensor.shape().clone() }.bt())
}

struct Constants(Arc<Shared>);

impl SimpleBackend for Constants {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        of_shape(self.get_unchecked(name, dtype, device)?, shape, name)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        let known = self.0.entries().get(name).map(|parameter| parameter.var.as_detached_tensor());
        let tensor = known
            .ok_or_else(|| candle_core::Error::CannotFindTensor { path: name.to_owned() }.bt())?;
        // A copy: some layers keep constants as they get them.
        tensor.copy()?.to_device(device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.entries().contains_key(name)
    }
}
