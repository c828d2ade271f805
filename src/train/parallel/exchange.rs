//! Tensors that travel between ranks in buckets, each as soon as it is complete.

use std::sync::Arc;

use candle_core::Tensor;

use super::{Collective, Communicator, Transfer};
use crate::error::{Error, Result};

/// Which tensors travel together, and in which order: the same for every rank, whatever its images show.
#[derive(Debug)]
pub(in crate::train) struct Plan {
    /// Places of tensors.
    buckets: Vec<Vec<usize>>,
    /// By place.
    bucket_of: Vec<usize>,
}

impl Plan {
    /// Tensors of so many elements, taken in the order in which they are expected, in buckets of at most `capacity`
    /// elements. One that exceeds a bucket travels alone.
    pub fn new(sizes: &[usize], order: impl IntoIterator<Item = usize>, capacity: usize) -> Self {
        let mut buckets: Vec<Vec<usize>> = Vec::new();
        let mut bucket_of = vec![0; sizes.len()];
        let mut elements = 0;
        for place in order {
            elements += sizes[place];
            match buckets.last_mut().filter(|_| elements <= capacity) {
                Some(bucket) => bucket.push(place),
                None => {
                    buckets.push(vec![place]);
                    elements = sizes[place];
                }
            }
            bucket_of[place] = buckets.len() - 1;
        }
        Self { buckets, bucket_of }
    }
}

/// One exchange of all tensors of a plan.
///
/// A bucket is sent as soon as it is complete and those before it have been sent, so that ranks send in the same order
/// even where their backward passes find gradients in different ones, or none for some parameters.
pub(in crate::train) struct Exchange {
    communicator: Arc<dyn Communicator>,
    collective: Collective,
    plan: Arc<Plan>,
    /// By place.
    complete: Vec<bool>,
    /// Buckets on their way, from the first on.
    travelling: Vec<Transfer>,
}

impl Exchange {
    pub fn new(
        communicator: Arc<dyn Communicator>,
        collective: Collective,
        plan: Arc<Plan>,
    ) -> Self {
        Self {
            collective,
            complete: vec![false; plan.bucket_of.len()],
            travelling: Vec::new(),
            communicator,
            plan,
        }
    }

    /// Whether the tensor at a place is on its way.
    pub fn has_sent(&self, place: usize) -> bool {
        self.plan.bucket_of[place] < self.travelling.len()
    }

    /// Says that the tensor at a place is complete, and sends what can be sent.
    pub fn complete(&mut self, place: usize, tensors: &mut [Option<Tensor>]) -> Result<()> {
        self.complete[place] = true;
        while self.next_is_complete() {
            self.send(tensors)?;
        }
        Ok(())
    }

    fn next_is_complete(&self) -> bool {
        let next = self.plan.buckets.get(self.travelling.len());
        next.is_some_and(|bucket| bucket.iter().all(|place| self.complete[*place]))
    }

    /// Strings the tensors of the next bucket together and sends them.
    fn send(&mut self, tensors: &mut [Option<Tensor>]) -> Result<()> {
        let places = self.plan.buckets[self.travelling.len()].iter();
        let flat: Vec<Tensor> = places
            .map(|place| match tensors[*place].take() {
                Some(tensor) => Ok(tensor.flatten_all()?),
                None => Err(self.missing(*place)),
            })
            .collect::<Result<_>>()?;
        let transfer = self.communicator.start(self.collective, &Tensor::cat(&flat, 0)?)?;
        self.travelling.push(transfer);
        Ok(())
    }

    /// Sends the rest, of which nothing may be missing, waits for all, and returns what arrives, in the shapes of `like`.
    pub fn finish(
        mut self,
        mut tensors: Vec<Option<Tensor>>,
        like: &[&Tensor],
    ) -> Result<Vec<Tensor>> {
        while self.travelling.len() < self.plan.buckets.len() {
            self.send(&mut tensors)?;
        }
        for (bucket, transfer) in self.plan.buckets.iter().zip(std::mem::take(&mut self.travelling))
        {
            let arrived = transfer.finish()?;
            let mut start = 0;
            for place in bucket {
                let shape = like[*place].shape();
                let part = arrived.narrow(0, start, shape.elem_count())?.reshape(shape)?;
                tensors[*place] = Some(part);
                start += shape.elem_count();
            }
        }
        let places = tensors.into_iter().enumerate();
        places.map(|(place, tensor)| tensor.ok_or_else(|| self.missing(place))).collect()
    }

    fn missing(&self, place: usize) -> Error {
        let problem = format!("tensor {place} was to be exchanged and is missing");
        Error::Parallel { rank: self.communicator.rank(), problem }
    }
}
