//! Published models and what training each takes: on one card, on every card, and how far a card goes at most.

use hearth_engine::config::{BaseFormat, Recompute, RunConfig};
use hearth_engine::data::DataStats;
use hearth_engine::error::{ErrorReport, Explain};
use hearth_engine::hardware::{self, CardStore, Hardware};
use hearth_engine::model::{Catalogue, CatalogueModel, ModelShape};
use hearth_engine::plan::{self, CardTable, Largest};
use hearth_engine::run;
use serde::{Deserialize, Serialize};

use crate::commands::{PlanRequest, aside};
use crate::engine::Answer;

/// What is asked of every model: the draft's wishes, the examples where there are any, and the computer.
#[derive(Debug, Deserialize)]
pub(crate) struct FitsRequest {
    config: RunConfig,
    stats: Option<DataStats>,
    hardware: Hardware,
}

/// A model of the catalogue on this hardware.
#[derive(Debug, Serialize)]
pub(crate) struct ModelFit {
    id: String,
    title: String,
    /// Its repository on the Hugging Face hub, and that of the variant tuned to answer.
    hub: String,
    instruct: Option<String>,
    licence: String,
    /// The licence has to be accepted on the model's page before a download.
    accept: bool,
    params: u64,
    /// The weights as they are published, in 16 bit.
    download_bytes: u64,
    fit: Option<Fit>,
    /// Why it cannot be planned: a wish that this model contradicts.
    refused: Option<ErrorReport>,
}

/// The proposal of the plan, as far as a list shows it.
#[derive(Debug, Serialize)]
struct Fit {
    fits: bool,
    planned_bytes: u64,
    budget_bytes: u64,
    tokens_per_s: f64,
    total_s: f64,
    base: BaseFormat,
    recompute: Recompute,
    /// Something of it waits in system memory while the card computes, which takes time.
    offloads: bool,
    length: usize,
}

/// Every model of the catalogue, planned for.
#[tauri::command]
pub(crate) async fn model_fits(request: FitsRequest) -> Answer<Vec<ModelFit>> {
    aside(move || Ok(Catalogue::bundled().models.iter().map(|model| model_fit(model, &request)).collect())).await
}

fn model_fit(model: &CatalogueModel, request: &FitsRequest) -> ModelFit {
    let data = examples(request.stats.as_ref(), &model.shape);
    let planned = plan::outline(&model.shape, &data, &request.config, &request.hardware);
    let (fit, refused) = match planned {
        Ok(plan) => {
            let fit = Fit {
                fits: plan.fits,
                planned_bytes: plan.planned_bytes,
                budget_bytes: plan.budget_bytes,
                tokens_per_s: plan.time.tokens_per_s,
                total_s: plan.time.total_s,
                base: plan.settings.base,
                recompute: plan.settings.recompute,
                offloads: plan.settings.offload_inputs || plan.settings.n_layers_streamed > 0,
                length: plan.settings.length,
            };
            (Some(fit), None)
        }
        Err(error) => (None, Some(error.report())),
    };
    ModelFit {
        id: model.id.clone(),
        title: model.title.clone(),
        hub: model.hub.clone(),
        instruct: model.instruct.clone(),
        licence: model.licence.name.clone(),
        accept: model.licence.accept,
        params: model.published_params,
        download_bytes: model.bytes_16bit(),
        fit,
        refused,
    }
}

/// The chosen examples, else assumed ones.
fn examples(stats: Option<&DataStats>, shape: &ModelShape) -> DataStats {
    let assumed = || plan::assumed_examples(plan::ASSUMED_LENGTH.min(shape.max_positions));
    stats.cloned().unwrap_or_else(assumed)
}

/// What is asked of every model on every card.
#[derive(Debug, Deserialize)]
pub(crate) struct CardTableRequest {
    config: RunConfig,
    stats: Option<DataStats>,
}

/// Every model of the catalogue on every card, own ones first.
#[tauri::command]
pub(crate) async fn card_table(request: CardTableRequest) -> Answer<CardTable> {
    aside(move || {
        let own = CardStore::new(&run::home()).profiles().map_err(|e| e.report())?;
        let with_card = own.iter().chain(hardware::profiles()).filter(|profile| profile.card.is_some());
        let models: Vec<&CatalogueModel> = Catalogue::bundled().models.iter().collect();
        let data = |shape: &ModelShape| examples(request.stats.as_ref(), shape);
        Ok(plan::card_table(&models, &with_card.collect::<Vec<_>>(), &data, &request.config))
    })
    .await
}

/// The longest text, the largest rank, the most sequences at once and the largest published model that fit. What cannot be had at
/// all is left out; all of it missing is an error.
#[tauri::command]
pub(crate) async fn largest(request: PlanRequest) -> Answer<Vec<Largest>> {
    aside(move || {
        let PlanRequest { config, shape, stats, hardware } = request;
        let data = |_: &ModelShape| stats.clone();
        let answers = [
            plan::longest(&shape, &config, &hardware).map(Some),
            plan::largest_rank(&shape, &stats, &config, &hardware).map(Some),
            plan::largest_micro_batch(&shape, &stats, &config, &hardware).map(Some),
            plan::largest_model(&Catalogue::bundled().models, &data, &config, &hardware),
        ];
        let mut found = Vec::new();
        let mut refused = None;
        for answer in answers {
            match answer {
                Ok(largest) => found.extend(largest),
                Err(error) => refused = refused.or(Some(error.report())),
            }
        }
        refused.filter(|_| found.is_empty()).map_or(Ok(found), Err)
    })
    .await
}

#[cfg(test)]
mod tests {
    use hearth_engine::hardware;
    use serde_json::json;

    use super::*;

    fn request(profile: &str, config: serde_json::Value) -> FitsRequest {
        FitsRequest {
            config: serde_json::from_value(config).expect("a configuration"),
            stats: None,
            hardware: hardware::profile(profile).expect("bundled").hardware(),
        }
    }

    fn open() -> serde_json::Value {
        json!({ "name": "", "model": "", "data": { "path": "" } })
    }

    fn of<'a>(fits: &'a [ModelFit], id: &str) -> &'a ModelFit {
        fits.iter().find(|fit| fit.id == id).expect("in the catalogue")
    }

    fn all(request: &FitsRequest) -> Vec<ModelFit> {
        Catalogue::bundled().models.iter().map(|model| model_fit(model, request)).collect()
    }

    #[test]
    fn a_small_model_fits_a_home_card_whole_and_a_large_one_does_not_at_all() {
        let fits = all(&request("rtx-3060-12gb", open()));
        let fit = |id| of(&fits, id).fit.as_ref().expect("planned");
        assert!(fit("smollm2-135m").fits && fit("smollm2-135m").recompute == Recompute::N);
        assert!(fit("llama-3.1-8b").fits && fit("llama-3.1-8b").base == BaseFormat::Nf4);
        assert!(!fit("llama-3.1-70b").fits);
        assert!(fit("smollm2-135m").tokens_per_s > fit("llama-3.1-8b").tokens_per_s);
    }

    #[test]
    fn a_plan_that_leaves_something_in_system_memory_says_so() {
        let offloads = |config| {
            let fits = all(&request("rtx-3060-12gb", config));
            of(&fits, "smollm2-135m").fit.as_ref().expect("planned").offloads
        };
        let with = |key: &str, value: serde_json::Value| {
            let mut config = open();
            config[key] = value;
            config
        };
        assert!(!offloads(open()));
        assert!(offloads(with("offload_inputs", json!(true))));
        let mut streamed = with("n_layers_streamed", json!(4));
        streamed["base"] = json!("nf4");
        assert!(offloads(streamed));
    }

    #[test]
    fn a_wish_that_a_model_contradicts_is_said_at_that_model_only() {
        let mut config = open();
        config["data"]["length"] = json!(4096);
        let fits = all(&request("rtx-4090-24gb", config));
        let short = of(&fits, "tinyllama-1.1b");
        assert_eq!(short.refused.as_ref().map(|report| report.code.as_str()), Some("plan.length_past_model"));
        assert!(short.fit.is_none() && of(&fits, "llama-3.1-8b").fit.is_some());
    }
}
