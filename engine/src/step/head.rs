//! Output head and loss: supervised rows only, in chunks, the gradient in place of the logits.

use candle_core::{Result, Tensor};

use super::Pass;
use crate::ops::cross_entropy::{cross_entropy, cross_entropy_backward};
use crate::ops::gemm::{Write, gemm};
use crate::ops::memory::{Held, Site};
use crate::ops::rms_norm::{rms_norm, rms_norm_backward};
use crate::ops::rows::{gather, scatter};
use crate::ops::upload::download;

impl Pass<'_> {
    /// The loss of every supervised row, for [`Pass::loss`]. With `gradient_scale`, also writes the gradient by the last layer's
    /// output into those rows of the residual gradient (which must be clear elsewhere).
    pub(super) fn head(&self, gradient_scale: Option<f32>) -> Result<()> {
        let (model, batch, head) = (self.model, &self.batch, &self.batch.head);
        let eps = model.shape.rms_eps;
        let output = batch.input(model.shape.n_layers);
        let n = batch.rows.elem_count();
        for start in (0..n).step_by(head.n_rows) {
            let len = head.n_rows.min(n - start);
            let chunk = |t: &Tensor| t.narrow(0, start, len);
            let rows = chunk(&batch.rows)?;
            let (labels, stats) = (chunk(&batch.labels)?, chunk(&batch.stats)?);
            let first = |t: &Tensor| t.narrow(0, 0, len);
            let (x, norm, logits) = (first(&head.input)?, first(&head.norm)?, first(&head.logits)?);
            gather(&x, output, &rows)?;
            rms_norm(&norm, &x, &model.final_norm, eps)?;
            gemm(&logits, &norm, &model.head.t()?, 1.0, Write::Set)?;
            cross_entropy(&stats, &logits, &labels)?;
            let Some(scale) = gradient_scale else { continue };
            cross_entropy_backward(&logits, &stats, &labels, scale)?;
            let dx = first(&head.gradient)?;
            gemm(&norm, &logits, &model.head, 1.0, Write::Set)?;
            rms_norm_backward(&dx, &norm, &x, &model.final_norm, eps, false)?;
            let gradient = batch.gradient.narrow(1, 0, model.shape.hidden)?;
            scatter(&gradient, &dx, &rows)?;
        }
        Ok(())
    }

    /// Summed loss of the supervised rows in nats. The only values a micro-batch brings back to the host: a card is waited for here.
    pub(super) fn loss(&self) -> Result<f64> {
        let held = Held::new();
        held.admit(8 * self.batch.rows.elem_count() as u64, self.model.device(), Site::Losses)?;
        let stats = download(&self.batch.stats)?;
        Ok(stats.iter().skip(1).step_by(2).map(|&loss| loss as f64).sum())
    }
}
