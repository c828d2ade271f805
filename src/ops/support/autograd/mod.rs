//! Gradients of ops, on top of candle's graph.
//!
//! An op computes its output without any graph; [`record`] then makes the output a node of candle's graph, with a
//! [`Backward`] that knows the gradients. `loss.backward()` and whatever candle's own ops add work as usual.
//!
//! Candle adds each gradient to a tensor of zeros, out of place and on one thread, which for the maps of a pyramid costs
//! as much as some convolutions. So what candle sees between two of our ops is a *token*, a tensor of one value that
//! stands for the output, while the gradients themselves go from op to op through a [`Sum`]:
//! ```text
//! output ── bridge ──► token ── link ──► tokens of the inputs that our ops made
//!   ▲                                    inputs that candle or the user made (variables, losses' arithmetic)
//!   └─ consumers that are candle's ops   
//! ```
//! Consumers of ours find the token by the output's identity. Leaves have tokens too (`leaves.rs`), so that their
//! gradients can be used while the pass goes on. An op with more inputs than candle's three has a chain of links.
//!
//! A backward pass frees what an op has kept as soon as its gradients are known, as torch does: features make way for
//! gradients. Two passes over one graph are therefore an error; losses that share a network are added up first.

#[cfg(feature = "train")]
mod leaves;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp3, DType, Device, InplaceOp1, Layout, Shape,
    Tensor, TensorId,
};

#[cfg(feature = "train")]
pub(crate) use leaves::Leaves;

use super::cpu::elementwise;
use crate::error::Result;

/// The gradients of an op.
pub(crate) trait Backward: Send + Sync + 'static {
    /// Whether [`Self::backward`] needs the output, which is then kept.
    fn reads_output(&self) -> bool {
        false
    }

    /// Gradients of the inputs, in the order of [`record`], from that of the output. Only those that are `wanted` matter;
    /// `None` is a gradient of zeros. Where an op reads an input in another shape, its gradient may have that shape.
    fn backward(
        &self,
        output: Option<&Tensor>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<Tensor>>>;
}

/// Makes `output`, which must be fresh and have no graph, the result of an op on `inputs` with these gradients.
///
/// Without an input that is tracked, nothing happens; `backward` is made only if it is needed, and should hold inputs
/// detached.
pub(crate) fn record<B: Backward>(
    op: &'static str,
    inputs: &[&Tensor],
    output: Tensor,
    backward: impl FnOnce() -> Result<B>,
) -> Result<Tensor> {
    if !inputs.iter().any(|input| input.track_op()) {
        return Ok(output);
    }
    let mut edges = Vec::new();
    let targets = inputs
        .iter()
        .map(|input| {
            let (edge, target) = if let Some(made) = lookup(input) {
                (made.token, Target::Sum(made.sum))
            } else if input.track_op() {
                ((*input).clone(), Target::Edge { index: edges.len() })
            } else {
                return Target::None;
            };
            edges.push(edge);
            target
        })
        .collect();
    let backward = backward()?;
    let reads_output = backward.reads_output();
    let core = Arc::new(Core {
        op,
        kept: Mutex::new(Some(Kept { backward: Box::new(backward), output: None })),
        sum: Sum::default(),
        targets,
        shapes: inputs.iter().map(|input| input.shape().clone()).collect(),
        delivered: Mutex::new(Vec::new()),
    });
    let token = link(&core, &edges, 0)?;
    let bridge = Bridge {
        op,
        shape: output.shape().clone(),
        storage: Mutex::new(Some(take_storage(output)?)),
        sum: core.sum.clone(),
        id: Arc::default(),
    };
    let id = bridge.id.clone();
    let output = token.apply_op1(bridge)?;
    if let Some(kept) = lock(&core.kept).as_mut().filter(|_| reads_output) {
        kept.output = Some(output.detach());
    }
    lock(&MADE).insert(*id.get_or_init(|| output.id()), Made { token, sum: core.sum.clone() });
    Ok(output)
}

/// What stands for the output of an op in the graph.
#[derive(Clone)]
struct Made {
    token: Tensor,
    sum: Sum,
}

/// Outputs that are alive, by identity.
static MADE: LazyLock<Mutex<HashMap<TensorId, Made>>> = LazyLock::new(Mutex::default);

fn lookup(input: &Tensor) -> Option<Made> {
    #[cfg(feature = "train")]
    if let Some(leaf) = leaves::lookup(input.id()) {
        return Some(leaf);
    }
    lock(&MADE).get(&input.id()).cloned()
}

/// Nothing that these locks protect can be left half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sum of gradients that is taken once it is complete. A clone is the same sum.
#[derive(Clone, Default)]
struct Sum(Arc<Mutex<Option<Tensor>>>);

impl Sum {
    fn add(&self, gradient: Tensor) -> Result<()> {
        let mut sum = lock(&self.0);
        *sum = Some(match sum.take() {
            None => gradient,
            Some(sum) => elementwise::add(&sum, &gradient)?,
        });
        Ok(())
    }

    fn take(&self) -> Option<Tensor> {
        lock(&self.0).take()
    }
}

/// Where the gradient of an input goes.
enum Target {
    /// Nobody wants it.
    None,
    /// To another of our ops.
    Sum(Sum),
    /// To candle, through an edge of the graph.
    Edge { index: usize },
}

/// What the gradients of an op depend on.
struct Kept {
    backward: Box<dyn Backward>,
    /// The output, where the gradients depend on it.
    output: Option<Tensor>,
}

/// An op in the graph.
struct Core {
    op: &'static str,
    /// Until the gradients have been computed.
    kept: Mutex<Option<Kept>>,
    sum: Sum,
    targets: Vec<Target>,
    /// Of the inputs.
    shapes: Vec<Shape>,
    /// By edge.
    delivered: Mutex<Vec<(usize, Tensor)>>,
}

impl Core {
    /// Computes the gradients, sends them on, and frees what they were computed from.
    fn run(&self) -> Result<()> {
        let kept = lock(&self.kept).take();
        // Every consumer may have had a gradient of zeros.
        let Some(gradient) = self.sum.take() else { return Ok(()) };
        let Some(Kept { backward, output }) = kept else {
            let problem = "an earlier backward pass has freed the graph; compute the output anew";
            return Err(candle_core::Error::Msg(format!("{}: {problem}", self.op)).into());
        };
        let wanted: Vec<bool> =
            self.targets.iter().map(|target| !matches!(target, Target::None)).collect();
        let gradients = backward.backward(output.as_ref(), &gradient, &wanted)?;
        drop((backward, output));
        for ((target, shape), gradient) in self.targets.iter().zip(&self.shapes).zip(gradients) {
            let Some(gradient) = gradient else { continue };
            match target {
                Target::None => {}
                Target::Sum(sum) => sum.add(gradient.reshape(shape)?)?,
                Target::Edge { index } => {
                    lock(&self.delivered).push((*index, gradient.reshape(shape)?));
                }
            }
        }
        Ok(())
    }

    fn delivered(&self, edge: usize) -> Option<Tensor> {
        let mut delivered = lock(&self.delivered);
        let at = delivered.iter().position(|(index, _)| *index == edge)?;
        Some(delivered.swap_remove(at).1)
    }
}

/// Edges of a link.
const EDGES: usize = 3;

/// Makes the token of an op whose edges from `first` on are still to be linked.
fn link(core: &Arc<Core>, edges: &[Tensor], first: usize) -> Result<Tensor> {
    let rest = &edges[first..];
    let device = edges[0].device();
    let own = if rest.len() > EDGES { EDGES - 1 } else { rest.len() };
    let mut ends = rest[..own].to_vec();
    if own < rest.len() {
        ends.push(link(core, edges, first + own)?);
    }
    while ends.len() < EDGES {
        ends.push(token(device)?);
    }
    let edges = first..first + own;
    Ok(ends[0].apply_op3(&ends[1], &ends[2], Link { core: core.clone(), edges })?)
}

fn token(device: &Device) -> candle_core::Result<Tensor> {
    Tensor::zeros(1, DType::F32, device)
}

struct Link {
    core: Arc<Core>,
    /// Those that end here; after them comes another link, or a token that nobody tracks.
    edges: Range<usize>,
}

impl CustomOp3 for Link {
    fn name(&self) -> &'static str {
        self.core.op
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
    }

    fn cuda_fwd(
        &self,
        storage: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let shape = Shape::from(1);
        Ok((storage.device().zeros_impl(&shape, DType::F32)?, shape))
    }

    fn bwd(
        &self,
        a: &Tensor,
        b: &Tensor,
        c: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        if self.edges.start == 0 {
            self.core.run().map_err(candle_core::Error::wrap)?;
        }
        let gradient = |end: &Tensor, place: usize| {
            let edge = self.edges.clone().nth(place);
            match edge.and_then(|edge| self.core.delivered(edge)) {
                Some(gradient) => Ok(Some(gradient)),
                None if end.track_op() => end.zeros_like().map(Some),
                None => Ok(None),
            }
        };
        Ok((gradient(a, 0)?, gradient(b, 1)?, gradient(c, 2)?))
    }
}

/// Turns a token into the output, and the output's gradient into a part of the sum.
struct Bridge {
    op: &'static str,
    shape: Shape,
    storage: Mutex<Option<Taken>>,
    sum: Sum,
    id: Arc<OnceLock<TensorId>>,
}

impl Bridge {
    fn storage(&self) -> candle_core::Result<Taken> {
        lock(&self.storage)
            .take()
            .ok_or_else(|| candle_core::Error::Msg(format!("{}: its output is gone", self.op)))
    }

    fn elsewhere(&self) -> candle_core::Error {
        candle_core::Error::Msg(format!("{}: output and inputs are on different devices", self.op))
    }
}

impl CustomOp1 for Bridge {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        match self.storage()? {
            Taken::Cpu(storage) => Ok((storage, self.shape.clone())),
            Taken::Cuda(_) => Err(self.elsewhere()),
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> candle_core::Result<(CudaStorage, Shape)> {
        match self.storage()? {
            Taken::Cuda(storage) => Ok((storage, self.shape.clone())),
            Taken::Cpu(_) => Err(self.elsewhere()),
        }
    }

    fn bwd(
        &self,
        token: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<Option<Tensor>> {
        self.sum.add(gradient.contiguous()?).map_err(candle_core::Error::wrap)?;
        token.zeros_like().map(Some)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if let Some(id) = self.id.get() {
            // What is removed may own other bridges: it is dropped after the lock.
            let made = lock(&MADE).remove(id);
            drop(made);
        }
    }
}

/// Storage of a tensor that nobody else uses.
enum Taken {
    Cpu(CpuStorage),
    Cuda(CudaStorage),
}

/// Takes the storage out of a tensor, without a copy.
fn take_storage(tensor: Tensor) -> Result<Taken> {
    let take = Take(Mutex::new(None));
    // Of an empty tensor candle sees strides of zero, and suspects that elements are shared.
    let tensor = if tensor.elem_count() == 0 { tensor.flatten_all()? } else { tensor };
    tensor.inplace_op1(&take)?;
    let taken = lock(&take.0).take();
    Ok(taken.ok_or_else(|| candle_core::Error::Msg("a tensor without storage".to_owned()))?)
}

struct Take(Mutex<Option<Taken>>);

impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
        let empty = CpuStorage::F32(Vec::new());
        *lock(&self.0) = Some(Taken::Cpu(std::mem::replace(storage, empty)));
        Ok(())
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> candle_core::Result<()> {
        let empty = storage.device().zeros_impl(&Shape::from(1), storage.dtype())?;
        *lock(&self.0) = Some(Taken::Cuda(std::mem::replace(storage, empty)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::ops::support::testing::values;

    /// Multiplies by two, and holds something.
    struct Double {
        _held: Arc<()>,
    }

    pub(super) fn double(input: &Tensor) -> Tensor {
        double_holding(input, &Arc::default())
    }

    impl Backward for Double {
        fn reads_output(&self) -> bool {
            true
        }

        fn backward(
            &self,
            output: Option<&Tensor>,
            gradient: &Tensor,
            _: &[bool],
        ) -> Result<Vec<Option<Tensor>>> {
            assert!(output.is_some());
            Ok(vec![Some((gradient * 2.0)?)])
        }
    }

    fn double_holding(input: &Tensor, held: &Arc<()>) -> Tensor {
        let output = (input.detach() * 2.0).unwrap();
        record("double", &[input], output, || Ok(Double { _held: held.clone() })).unwrap()
    }

    #[test]
    fn a_pass_frees_what_it_was_computed_from() {
        let held = Arc::new(());
        let input = Var::new(&[1f32, -3.0], &Device::Cpu).unwrap();
        let once = double_holding(&input, &held);
        let sum = (double_holding(&once, &held) + &once).unwrap().sum_all().unwrap();
        assert_eq!(Arc::strong_count(&held), 3);
        let gradients = sum.backward().unwrap();
        assert_eq!(values(gradients.get(&input).unwrap()), [6.0, 6.0]);
        assert_eq!(Arc::strong_count(&held), 1);
        let error = sum.backward().unwrap_err().to_string();
        assert!(error.contains("double") && error.contains("earlier backward pass"), "{error}");
    }
}
