//! Gradients of leaves, such as a network's parameters, handed over one by one.
//!
//! Candle collects the gradients of variables in a store that is there when the backward pass is over, and adds each to a
//! tensor of zeros first. Leaves that are known beforehand have tokens instead, as the outputs of our ops have (see
//! [`super`]): what our ops compute for a leaf is summed up beside the graph, and the token's place in the graph, behind
//! the last op that uses the leaf, tells when the sum is complete.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, DType, Layout, Shape, Tensor, TensorId, Var,
};

use super::{Made, Sum, lock};
use crate::error::{Error, Result};

/// Takes a leaf's identity and its gradient.
type Receive = Box<dyn FnMut(TensorId, Tensor) -> Result<()> + Send>;

/// Leaves whose gradients are handed over as soon as they are complete.
pub(crate) struct Leaves {
    made: HashMap<TensorId, Made>,
    receiver: Receiver,
}

/// Who is told. A clone is the same receiver.
#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Hearing>>);

/// A receiver during a backward pass, and before and after it.
#[derive(Default)]
enum Hearing {
    #[default]
    Absent,
    Listens(Receive),
    /// It could not go on, which ends the pass; candle's errors can't hold ours.
    Failed(Error),
}

impl Receiver {
    /// Hands over a gradient, or says why that failed in candle's terms.
    fn tell(&self, id: TensorId, gradient: Tensor) -> candle_core::Result<()> {
        let mut hearing = lock(&self.0);
        let Hearing::Listens(receive) = &mut *hearing else { return Ok(()) };
        receive(id, gradient).map_err(|error| {
            let problem = candle_core::Error::msg(&error);
            *hearing = Hearing::Failed(error);
            problem
        })
    }
}

thread_local! {
    /// Those that ops on this thread look at, the innermost last.
    static WATCHED: RefCell<Vec<HashMap<TensorId, Made>>> = const { RefCell::new(Vec::new()) };
}

impl Leaves {
    /// Variables of one device.
    pub fn new<'a>(variables: impl IntoIterator<Item = &'a Var>) -> Result<Self> {
        let receiver = Receiver::default();
        let mut root = None;
        let mut made = HashMap::new();
        for variable in variables {
            let root = match &mut root {
                Some(root) => root,
                none => none.insert(Var::zeros(1, DType::F32, variable.device())?),
            };
            let (id, sum) = (variable.as_tensor().id(), Sum::default());
            let leaf = Leaf { id, sum: sum.clone(), receiver: receiver.clone() };
            made.insert(id, Made { token: root.apply_op1(leaf)?, sum });
        }
        Ok(Self { made, receiver })
    }

    /// Does work whose ops, as far as this thread records them, belong to these leaves.
    pub fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Also when the work panics.
        struct Unwatch;
        impl Drop for Unwatch {
            fn drop(&mut self) {
                WATCHED.with_borrow_mut(Vec::pop);
            }
        }
        WATCHED.with_borrow_mut(|watched| watched.push(self.made.clone()));
        let _unwatch = Unwatch;
        work()
    }

    /// The backward pass of a loss that was computed under [`Self::watch`]. A gradient is handed over when no op is left
    /// that adds to it. What ops other than ours add comes at the end, separately.
    ///
    /// A leaf that the loss does not depend on is not mentioned.
    pub fn backward(
        self,
        loss: &Tensor,
        receive: impl FnMut(TensorId, Tensor) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        *lock(&self.receiver.0) = Hearing::Listens(Box::new(receive));
        let passed = loss.backward().and_then(|store| {
            for id in store.get_ids().filter(|id| self.made.contains_key(id)) {
                if let Some(gradient) = store.get_id(*id) {
                    self.receiver.tell(*id, gradient.detach())?;
                }
            }
            Ok(())
        });
        match std::mem::take(&mut *lock(&self.receiver.0)) {
            Hearing::Failed(error) => Err(error),
            Hearing::Absent | Hearing::Listens(_) => Ok(passed?),
        }
    }
}

/// The token of a leaf, as ops on this thread are to see it.
pub(super) fn lookup(id: TensorId) -> Option<Made> {
    WATCHED.with_borrow(|watched| watched.last()?.get(&id).cloned())
}

/// Stands for a leaf in the graph.
struct Leaf {
    id: TensorId,
    sum: Sum,
    receiver: Receiver,
}

impl CustomOp1 for Leaf {
    fn name(&self) -> &'static str {
        "leaf"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
    }

    fn cuda_fwd(
        &self,
        storage: &CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(CudaStorage, Shape)> {
        let shape = Shape::from(1);
        Ok((storage.device().zeros_impl(&shape, DType::F32)?, shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> candle_core::Result<Option<Tensor>> {
        // Every consumer may have had a gradient of zeros.
        let Some(gradient) = self.sum.take() else { return Ok(None) };
        self.receiver.tell(self.id, gradient)?;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::tests::double;
    use super::*;
    use crate::ops::support::testing::values;

    fn variable() -> Var {
        Var::new(&[1f32, -3.0], &Device::Cpu).unwrap()
    }

    type HandedOver = (TensorId, Vec<f32>);

    /// What is handed over, in its order.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<HandedOver>>>);

    impl Log {
        fn receive(&self) -> impl FnMut(TensorId, Tensor) -> Result<()> + Send + 'static {
            let log = self.clone();
            move |id, gradient| {
                lock(&log.0).push((id, values(&gradient)));
                Ok(())
            }
        }
    }

    #[test]
    fn a_gradient_comes_once_and_after_all_uses() {
        let (early, late, unused) = (variable(), variable(), variable());
        let leaves = Leaves::new([&early, &late, &unused]).unwrap();
        let loss = leaves.watch(|| {
            let twice = (double(&early) + double(&early)).unwrap();
            (double(&twice) + double(&late)).unwrap().sum_all().unwrap()
        });
        let log = Log::default();
        leaves.backward(&loss, log.receive()).unwrap();
        let found = lock(&log.0).clone();
        assert_eq!(found, [(late.id(), vec![2.0; 2]), (early.id(), vec![8.0; 2])]);
    }

    #[test]
    fn what_other_ops_add_comes_at_the_end() {
        let variable = variable();
        let leaves = Leaves::new([&variable]).unwrap();
        let loss = leaves
            .watch(|| (double(&variable) + variable.as_tensor() * 5.0).unwrap().sum_all().unwrap());
        let log = Log::default();
        leaves.backward(&loss, log.receive()).unwrap();
        let id = variable.id();
        assert_eq!(*lock(&log.0), [(id, vec![2.0; 2]), (id, vec![5.0; 2])]);
    }

    #[test]
    fn passes_beside_each_other_keep_apart() {
        let variable = variable();
        let [first, second] = [(); 2].map(|()| Leaves::new([&variable]).unwrap());
        let loss = |leaves: &Leaves, times: usize| {
            leaves.watch(|| (0..times).fold(variable.as_tensor().clone(), |t, _| double(&t)))
        };
        let (once, twice) = (loss(&first, 1), loss(&second, 2));
        let (one, two) = (Log::default(), Log::default());
        second.backward(&twice, two.receive()).unwrap();
        first.backward(&once, one.receive()).unwrap();
        assert_eq!(*lock(&one.0), [(variable.id(), vec![2.0; 2])]);
        assert_eq!(*lock(&two.0), [(variable.id(), vec![4.0; 2])]);
        // Outside, the graph is candle's.
        let store = double(&variable).backward().unwrap();
        assert_eq!(values(store.get(&variable).unwrap()), [2.0; 2]);
    }

    #[test]
    fn a_receiver_that_fails_ends_the_pass_with_its_own_error() {
        let variable = variable();
        let leaves = Leaves::new([&variable]).unwrap();
        let loss = leaves.watch(|| double(&variable));
        let problem = "gone".to_owned();
        let result = leaves.backward(&loss, move |_, _| {
            Err(Error::Parallel { rank: 3, problem: problem.clone() })
        });
        assert!(matches!(result, Err(Error::Parallel { rank: 3, .. })));
    }
}
