import type { Plan } from "$lib/bindings/Plan";
import type { Formatter } from "$lib/format";

import { byRule, type Rule } from "./sentences-zh";

/** How the search for NVIDIA cards ended. */
export const zhCardOutcomes: Record<string, readonly [string, string]> = {
  driver_mismatch: ["NVIDIA 驱动与已安装的库版本不一致。", "重新启动电脑。"],
  no_driver: ["没有响应的 NVIDIA 驱动。", ""],
  no_devices: ["驱动有响应，但没有找到显卡。", ""],
  no_report: ["驱动没有给出可读的回答。", ""],
  timed_out: ["驱动没有及时回答。", "稍后重新检查。"],
  absent: ["没有安装 NVIDIA 驱动。", ""],
};

/** Why runs train on the processor, and what to do, by the reason of the card's setup. */
export const zhGpuReasons: Record<string, readonly [string, string]> = {
  ready: ["运行会在显卡上训练。", ""],
  by_hand: ["运行会在处理器上训练：HEARTH_ENGINE 设为 processor。", "从环境变量中去掉 HEARTH_ENGINE 即可使用显卡。"],
  no_card: ["运行会在处理器上训练：没有可用的显卡。", ""],
  old_card: ["运行会在处理器上训练：显卡太旧。", "支持 RTX 20 系列及更新的显卡。"],
  old_driver: ["运行会在处理器上训练：NVIDIA 驱动太旧。", "安装最新的 NVIDIA 驱动，重新启动电脑，然后重新检查。"],
  no_engine: ["运行会在处理器上训练：这个安装没有显卡引擎 hearth-cuda。", "安装带有 hearth-cuda 的 Hearth。"],
  no_libraries: ["运行会在处理器上训练：缺少 CUDA 运行库。", "点击下载，或运行 hearth setup-gpu。"],
  damaged_libraries: ["运行会在处理器上训练：CUDA 运行库已损坏。", "重新下载，或运行 hearth setup-gpu。"],
  does_not_start: ["运行会在处理器上训练：显卡引擎 hearth-cuda 无法启动。", "运行 hearth setup-gpu --check 检查每个运行库。"],
};

/** Memory items by their label, else by their stable name. */
export const zhItems: Record<string, string> = {
  "Base weights, f32": "基座权重（f32）",
  "Base weights, 16-bit": "基座权重（16 位）",
  "Base weights, NF4": "基座权重（NF4）",
  embeddings: "词嵌入",
  head: "输出层",
  norms: "归一化",
  adapter: "LoRA 适配器（f32）",
  gradients: "梯度（f32）",
  "Optimizer state, 32-bit": "优化器状态（32 位）",
  "Optimizer state, 8-bit": "优化器状态（8 位）",
  kept: "保留的激活值",
  workspace: "层与损失工作区",
  inputs: "批次与位置",
  slot: "反量化缓冲区",
  runtime: "线程与运行库",
  samples: "评估时的回答",
  streamed: "各层权重（NF4）",
  parked: "各层的输入",
  checkpoint: "检查点的副本",
  loading: "读取模型",
  cuda_context: "CUDA 上下文",
  cuda_libraries: "CUDA 运行库",
};

/** Short phrases without values. */
export const zhPhrases: Record<string, string> = {
  messages: "对话消息",
  sharegpt: "ShareGPT 对话",
  alpaca: "Alpaca 指令",
  prompt_completion: "提示与回答",
  text: "纯文本",
  columns: "自定义列",
};

/** Kinds of problems with rows. */
export const zhProblems: Record<string, string> = {
  json_incomplete: "行不完整",
  json_invalid: "不是 JSON",
  not_an_object: "不是对象",
  wrong_type: "字段类型不对",
  field_count: "列数不对",
  unclosed_quote: "引号没有闭合",
  text_after_quote: "闭合引号后还有文字",
  lone_surrogate: "字符损坏",
  not_utf8: "不是 UTF-8 文本",
  no_conversation: "没有对话",
  empty_conversation: "对话为空",
  no_assistant_turn: "没有可以学习的回答",
  empty_prompt: "问题为空",
  empty_answer: "回答为空",
  empty_text: "文本为空",
  turn: "有一轮对话无法读取",
  tools: "工具描述无法读取",
  tool_arguments: "工具调用无法读取",
  template_refused: "对话模板拒绝这一行",
  template_failed: "对话模板处理失败",
  unwritten_turn: "对话模板没有写出整轮对话",
  tokenizer: "无法转换为词元",
  mask: "找不到要学习的部分",
  nothing_learned: "没有可以学习的内容",
  too_long: "超过长度上限",
  cut: "按上限截断",
};

/** A sentence with the plan's numbers; what no field of the plan holds is read from the engine's own. Null: that cannot be read. */
export type Said = (plan: Plan, f: Formatter, original: string) => string | null;

const layers = ({ settings }: Plan): string =>
  settings.lora.targets.length === 7
    ? "七个线性层全部参与训练。"
    : `七个线性层中有 ${settings.lora.targets.length} 个参与训练。`;

const fate = ({ settings }: Plan) => (settings.over_length === "truncate" ? "会被截断" : "不会使用");

const packing: Said = ({ settings, data }, f, original) => {
  const mean = /have (\d+) tokens on average/.exec(original)?.[1];
  if (mean === undefined) return null;
  return settings.packing
    ? `样本平均 ${mean} 个词元：${f.count(data.n_train)} 条拼成 ${f.count(data.n_sequences)} 个序列，互相看不见。`
    : `样本平均 ${mean} 个词元：每个序列一条，没有填充。`;
};

const batch = ({ settings }: Plan) => settings.micro_batch * settings.accumulation;

const optimizerState: Said = (_, __, original) => {
  const [, wide, of, short, narrow] = /takes (\S+) % of (the card|system memory)(, for which .*)?; .* (\S+) %/.exec(original) ?? [];
  if (narrow === undefined) return null;
  return `32 位状态占${of === "the card" ? "显卡" : "系统内存"}的 ${wide}%${short ? "，放不下" : ""}；8 位占 ${narrow}%。`;
};

const passes = ({ data, time }: Plan, f: Formatter): string =>
  `${f.count(data.n_train)} 条样本训练 ${f.short(time.epochs)} 轮，共 ${f.count(time.n_steps)} 步`;

const saves = ({ settings }: Plan, f: Formatter): string =>
  `另外每 ${f.duration(settings.checkpoints.every_seconds)} 保存一次。`;

/** Reasons of settings, by their code. */
export const zhReasons: Record<string, Said> = {
  "rank.small": (plan) => `能学的不多：适合单一任务，或内存紧张时。${layers(plan)}`,
  "rank.usual": (plan) => `足以学会语气、格式和一项任务。${layers(plan)}`,
  "rank.large": (plan) => `能学会新的习惯；多数任务用不到。${layers(plan)}`,
  "rank.very_large": (plan) => `很少比秩 64 更好，而且更慢。${layers(plan)}`,
  "length.covers_all": ({ data }, f) => `最长的样本有 ${f.count(data.max_tokens)} 个词元：全部完整放得下。`,
  "length.covers_share": (plan, f, original) => {
    const share = /^About (\S+) %/.exec(original)?.[1];
    if (share === undefined) return null;
    const { n_over_length, max_tokens } = plan.data;
    return `约 ${share}% 的样本完整放得下；${f.count(n_over_length)} 条样本（最长 ${f.count(max_tokens)} 个词元）${fate(plan)}。`;
  },
  "packing.short_examples": packing,
  "packing.long_examples": packing,
  "packing.fixed": packing,
  "batch.few_examples": () => "序列不多：每一条都算一步。",
  "batch.at_once": (plan, f) => `${f.count(batch(plan))} 条一次就放得下。`,
  "batch.accumulated": (plan, f) =>
    `一次 ${plan.settings.micro_batch} 条，累积 ${plan.settings.accumulation} 次；训练结果与批次 ${f.count(batch(plan))} 完全相同。`,
  "batch.fixed": (plan, f) => `按您的选择：一次 ${f.count(batch(plan))} 条。`,
  "recompute.free_memory": () => "全部保留也放得下，不做重复计算。",
  "recompute.part": () => "全部保留放不下；保留注意力，其余重算。",
  "recompute.tight": () => "内存紧张：只保留每层的输入。结果相同。",
  "recompute.fixed": () => "按您的选择；各种方式结果相同。",
  "host_memory.tight": () => "放在系统内存中等待，显卡计算时同步搬运。结果相同。",
  "host_memory.parts": () => "一次算完放不下。结果相同。",
  "host_memory.fixed": () => "按您的选择；结果相同。",
  "weight_cache.left_over": () => "内存有余，这些权重只反量化一次。结果相同。",
  "weight_cache.fixed": () => "按您的选择；结果相同。",
  "optimizer.small_state": optimizerState,
  "optimizer.large_state": optimizerState,
  "optimizer.tight": optimizerState,
  "optimizer.fixed": optimizerState,
  "base.fixed": () => "按您的选择。适配器、求和与损失始终是 32 位。",
  "base.fits": () => "原始精度放得下，不做任何舍入。",
  "base.layers": () => "只有 NF4 基座才能按您的选择搬运各层的权重或保留其反量化。",
  "base.tight": () => "原始精度放不下。求和与损失仍是 32 位。",
  "compute.fixed": () => "按您的选择。求和、归一化与损失始终是 32 位。",
  "compute.fixed_f16": () => "按您的选择。损失会放大，使小的梯度不丢失；超过 65,504 时运行结束。",
  "compute.no_bf16": () => "这张显卡没有 bf16。损失会放大，使小的梯度不丢失；超过 65,504 时运行结束。",
  "learning_rate.usual": (plan, f) => `LoRA 的常用值，批次为 ${f.count(batch(plan))} 时也是。`,
  "learning_rate.fixed": (_, __, original) => {
    const usual = /is (\S+)\.$/.exec(original)?.[1];
    return usual === undefined ? null : `按您的选择；LoRA 的常用值是 ${usual}。`;
  },
  "warmup.share": ({ settings }, f) => `${f.count(settings.n_steps)} 步的 3%。`,
  "warmup.fixed": () => "按您的选择。",
  "epochs.usual": (plan, f) => `${passes(plan, f)}；保留评估最佳的结果。`,
  "epochs.usual_unevaluated": (plan, f) => `${passes(plan, f)}。`,
  "epochs.fixed": ({ time }, f) => `按您的选择：${f.count(time.n_steps)} 步。`,
  "evaluation.off": () => "没有留出样本，不做评估。",
  "evaluation.held_out": (plan, f) => `留出 ${f.count(plan.data.n_held_out)} 条样本。${saves(plan, f)}`,
  "evaluation.file": (plan, f) => `使用您指定的评估文件。${saves(plan, f)}`,
};

/** What another value does where no plan says it, by setting: the engine's form, and ours. */
export const zhChanges: Record<string, Rule> = {
  learning_rate: [/^(\S+): learns slower, forgets less\. No cost\.$/, "$1：学得更慢，忘得更少，没有额外开销。"],
  warmup: [/^Longer: gentler start\. No cost\.$/, "更长：起步更平缓，没有额外开销。"],
};

/** Values of counterfactuals. */
export const zhSettings: readonly (readonly [RegExp, (match: RegExpExecArray) => string])[] = [
  [/^Rank (.+)$/i, (m) => `秩 ${m[1]}`],
  [/^([\d,]+) tokens$/i, (m) => `${m[1]} 个词元`],
  [/^([\d,]+) steps?$/i, (m) => `${m[1]} 步`],
  [/^Every ([\d,]+) steps?$/i, (m) => `每 ${m[1]} 步`],
  [/^Nothing \(N\)$/, () => "不重算（N）"],
  [/^Part \(C1\)$/, () => "部分重算（C1）"],
  [/^Most \(C0\)$/, () => "大部分重算（C0）"],
  [
    /^(inputs of the layers)?(?:, )?(?:weights of (\d+) of (\d+) layers)?(?:, )?(?:MLP by ([\d,]+) tokens)?$/,
    (m) =>
      [m[1] && "各层的输入", m[2] && `${m[3]} 层中 ${m[2]} 层的权重`, m[4] && `MLP 每次 ${m[4]} 个词元`]
        .filter(Boolean)
        .join("，"),
  ],
  [/^All on the card$/, () => "全部放在显卡上"],
  [/^In one piece$/, () => "一次算完"],
  [/^Part \(C1\); nothing \(n\) in (\d+) of (\d+) layers$/i, (m) => `部分重算（C1）；${m[2]} 层中有 ${m[1]} 层不重算（N）`],
  [/^Most \(C0\); part \(c1\) in (\d+) of (\d+) layers$/i, (m) => `大部分重算（C0）；${m[2]} 层中有 ${m[1]} 层部分重算（C1）`],
  [/^None$/, () => "不保留"],
  [/^As many as fit$/, () => "放得下多少就保留多少"],
  [/^16-bit base$/, () => "16 位基座"],
  [/^32-bit base$/, () => "32 位基座"],
  [/^NF4 base$/, () => "NF4 基座"],
  [/^([\d.]+)$/, (m) => `${m[1]} 轮`],
  [/^(one by one)$/i, () => "逐条"],
  [/^packed$/i, () => "打包"],
  [/^8-bit$/i, () => "8 位"],
  [/^32-bit$/i, () => "32 位"],
];

/** Warnings of a plan, by their code. */
export const zhWarnings: Record<string, Said> = {
  many_too_long: (plan, f, original) => {
    const all = /of ([\d,]+) examples? are longer/.exec(original)?.[1];
    if (all === undefined) return null;
    const [over, length] = [f.count(plan.data.n_over_length), f.count(plan.settings.length)];
    return `${all} 条样本中有 ${over} 条超过 ${length} 个词元，${fate(plan)}。`;
  },
  few_examples: (_, __, original) => {
    const n = /^([\d,]+) examples? /.exec(original)?.[1];
    return n === undefined ? null : `只有 ${n} 条样本，可能被背下来而不是学会。`;
  },
  card_planned_only: () => "这是为显卡制定的方案；此引擎在处理器上训练。",
  very_long: ({ time }, f) => `这个运行大约需要 ${f.duration(time.total_s)}。更小的模型、更少的轮数或一张显卡会缩短它。`,
  patience_without_evaluation: () => "提前结束需要留出样本，而现在没有留出。",
  much_host_memory: ({ host }, f) =>
    `系统内存中要固定 ${f.memory(host?.bytes)}，而空闲的是 ${f.memory(host?.free_bytes)}：其他程序可能会内存不足。`,
  no_samples: () => "内存不足，评估时不回答留出的问题。",
  rank_over_width: ({ settings }, _, original) => {
    const width = /the (\d+) that the narrowest/.exec(original)?.[1];
    return width === undefined ? null : `秩 ${settings.lora.rank} 超过了最窄的适配层能用到的 ${width}。`;
  },
  card_not_used: (_, __, original) => {
    const card = /^(.+) is there; /.exec(original)?.[1];
    return card === undefined ? null : `电脑里有 ${card}，但此引擎在处理器上训练。`;
  },
};

/** What would make a run fit, by setting: the engine's form, and ours. */
export const zhRemedies: Record<string, readonly Rule[]> = {
  n_layers_cached: [[/^Keep no weights dequantised: .*$/, "不保留反量化的权重：结果相同，稍慢一些。"]],
  recompute: [
    [/^Recompute more \(C0 instead of (\w+)\): .*$/, "重算更多（C0，原为 $1）：结果相同，更慢。"],
    [/^Recompute more \(C0 in all layers\): .*$/, "重算更多（所有层都用 C0）：结果相同，更慢。"],
  ],
  host_memory: [
    [/^Let what can wait in system memory: .*$/, "能等待的都放在系统内存中等待：结果相同。"],
    [/^Let the plan divide the MLP: .*$/, "MLP 如何分批由方案决定：结果相同。"],
  ],
  micro_batch: [[/^Take 1 sequence at a time, (\d+) to a step: .*$/, "一次一条序列，每步仍为 $1 条：训练相同。"]],
  "optimizer.kind": [[/^Hold the optimizer's state in 8 bit: .*$/, "优化器状态改为 8 位：实际效果相同。"]],
  compute: [[/^Compute in (\w+): .*$/, "改用 $1 计算：精度略低；求和、归一化与损失仍是 32 位。"]],
  base: [[/^Hold the base in 4 bit \(NF4\): .*$/, "基座改为 4 位（NF4）：精度略低。"]],
  "data.length": [
    [/^Shorten the length to ([\d,]+) tokens: no example is longer\.$/, "长度缩短到 $1 个词元：没有样本超过它。"],
    [/^Shorten the length to ([\d,]+) tokens: ([\d,]+) examples? would be cut\.$/, "长度缩短到 $1 个词元：$2 条样本会被截断。"],
    [
      /^Shorten the length to ([\d,]+) tokens: ([\d,]+) examples? would be left out\.$/,
      "长度缩短到 $1 个词元：$2 条样本不会使用。",
    ],
  ],
  "lora.rank": [[/^Lower the rank to (\d+): .*$/, "秩降到 $1：适配器能学的更少。"]],
  memory_limit_bytes: [[/^Raise the memory limit to (.+)\.$/, "把内存上限提高到 $1。"]],
  other_programs: [
    [
      /^Close other programs: (.+) more must be free on this device, and they hold (.+) now\.$/,
      "关闭其他程序：这里还须空出 $1，它们现在占用 $2。",
    ],
    [/^Close other programs: they hold (.+) of the (.+) missing\.$/, "关闭其他程序：还差的 $2 中，它们占用 $1。"],
  ],
  model: [
    [
      /^Choose a smaller model: the least this one needs is (.+); (.+) fits as you asked\.$/,
      "换一个更小的模型：这个模型至少需要 $1；按您的设置，$2 放得下。",
    ],
    [/^Choose a smaller model: the least this one needs is (.+)\.$/, "换一个更小的模型：这个模型至少需要 $1。"],
  ],
  card: [[/^Use a card with (.+?): on (.+) it fits as you asked\.$/, "换一张显存为 $1 的显卡：在 $2 上按您的设置放得下。"]],
};

/** Checks of a proof, by their code. */
export const zhChecks: Record<string, string> = {
  loads: "从磁盘重新载入",
  tokenizer: "词元编号",
  weights: "权重",
  change: "相对基座的变化",
  tuned: "微调与基座的差异",
  logits: "最大对数几率差",
  divergence: "平均散度",
  top1: "最可能的词元",
  greedy: "贪心回答",
};

/**
 * Warnings of a run, by code: the sentence as the engine writes it, with its values, and ours. What does not match is shown in the
 * engine's words.
 */
export const zhRunWarnings: Record<string, readonly [RegExp, (match: RegExpExecArray) => string]> = {
  "run.memory_retried": [
    /^(?:Memory ran out after step (\d+))?.*What could be freed is, and it is tried again\.$/,
    (m) => `${m[1] ? `第 ${m[1]} 步之后` : ""}内存不足：已释放能释放的部分，正在重试。`,
  ],
  "run.on_rung": [
    /^Memory was short earlier in this run\. It goes on with (.+)\.$/,
    (m) => `此运行之前内存不足，现在以较省内存的方式继续：${byRule(m[1] ?? "")}；所学内容不变。`,
  ],
  "run.reserve_used": [
    /^The disk is full: this checkpoint took the space set aside for it\./,
    () => "磁盘已满：这个检查点用掉了为它预留的空间。请腾出空间，否则下一个检查点会失败，运行随之结束。",
  ],
  "run.checkpoint_damaged": [/^A checkpoint is passed over: (.+)\.$/s, (m) => `跳过了一个检查点：${m[1]}。`],
  "run.no_evaluation": [
    /^Nothing is held out of ([\d,]+) examples?, /,
    (m) => `${m[1]} 条样本中没有留出任何一条，因此不做评估，最后一步算作最佳。`,
  ],
  "data.rows_reported": [
    /^([\d,]+) of ([\d,]+) rows are not trained as they stand(?:, ([\d,]+) of them cut to (\d+) tokens)?(?:, ([\d,]+) of them longer than (\d+) tokens)?; the first is row (\d+)(?: \(line (\d+)\))?: (.+)\. All are listed in (\S+) of the run\.$/s,
    (m) =>
      [
        `${m[2]} 行中有 ${m[1]} 行没有原样训练`,
        m[3] && `，其中 ${m[3]} 行截断到 ${m[4]} 个词元`,
        m[5] && `，其中 ${m[5]} 行超过 ${m[6]} 个词元`,
        `；第一条：第 ${m[7]} 条`,
        m[8] && `（第 ${m[8]} 行）`,
        `，${byRule(m[9] ?? "")}。全部列在运行的 ${m[10]} 中。`,
      ]
        .filter(Boolean)
        .join(""),
  ],
  "run.evaluation_smaller": [
    /at most (\d+) tokens at once\.$/,
    (m) => `内存不足：评估改为一次最多 ${m[1]} 个词元。`,
  ],
  "run.evaluation_skipped": [/^Step (\d+) is not evaluated/, (m) => `内存不足：第 ${m[1]} 步没有评估。`],
  "run.samples_skipped": [/after step (\d+)/, (m) => `第 ${m[1]} 步之后没有回答留出的问题。`],
  "run.checkpoint_skipped": [
    /^No checkpoint was made after step (\d+)/,
    (m) => `内存不足：第 ${m[1]} 步之后没有保存检查点，下一次会再试；在此之前只有上一个检查点是安全的。请关闭其他占用内存的程序。`,
  ],
  "run.no_reserve": [
    /^No space could be set aside for a checkpoint: (.+)\. It is tried again/s,
    (m) => `没有为检查点预留出磁盘空间：${m[1]}。每次保存时会再试；在此之前，磁盘写满会丢失上一个检查点之后的步数。`,
  ],
  "run.checkpoint_not_removed": [/^An old checkpoint is still there: (.+)\.$/s, (m) => `一个旧的检查点没有删除：${m[1]}。`],
  "run.card_filling": [
    /^Other programs have taken (.+) of the card since the run began: (.+) are free, and .+ needs (.+?)\. /,
    (m) => `运行开始以来，其他程序又占用了显卡 ${m[1]}：剩余 ${m[2]}，下一次评估和回答需要 ${m[3]}。请在那之前关闭它们，否则运行会以较少的内存、较慢的速度继续。`,
  ],
  "run.card_spilled": [
    /^The last (\d+) steps took (.+) times as long as usual while the card is (.+) % full/,
    (m) =>
      `最近 ${m[1]} 步用时是平时的 ${m[2]} 倍，而显存已占用 ${m[3]}%：驱动程序似乎把一部分移到了系统内存（Windows 上会这样）。请关闭占用显卡的程序；也可以在 NVIDIA 控制面板的“CUDA - Sysmem Fallback Policy”中禁止。`,
  ],
  "rehearsal.slower": [
    /^The rehearsal expects (.+); the plan said (.+): (\d+) % more time\.$/,
    (m) => `预演预计需要 ${m[1]}；方案说的是 ${m[2]}，多用 ${m[3]}% 的时间。`,
  ],
  "rehearsal.faster": [
    /^The rehearsal expects (.+); the plan said (.+): (\d+) % less time\.$/,
    (m) => `预演预计需要 ${m[1]}；方案说的是 ${m[2]}，少用 ${m[3]}% 的时间。`,
  ],
  "rehearsal.more_memory": [
    /^The rehearsal took (.+), (.+) more than planned; it fits all the same\./,
    (m) => `预演用了 ${m[1]}，比方案多 ${m[2]}，仍然放得下。下一个方案会计入。`,
  ],
  "rehearsal.incomplete": [
    /^Not everything could be rehearsed: (.+)\. The run goes on, by the plan\.$/,
    (m) => `预演没有全部完成：${m[1]}。运行按方案继续。`,
  ],
  "rehearsal.not_kept": [
    /^What was measured is not kept for later plans: (.+)\.$/,
    (m) => `测得的结果没有保存给以后的方案：${m[1]}。`,
  ],
  "rehearsal.unreadable": [
    /^What was rehearsed is not known any more: (.+)\.$/s,
    (m) => `预演的结果读不出来：${m[1]}。`,
  ],
  "governor.unreadable": [
    /^The governor's new settings are not obeyed: (.+)\.$/,
    (m) => `新的限制设置未被采用：${m[1]}。`,
  ],
  "governor.blind": [
    /^Nothing can be read of a card here/,
    () => "这里读不到显卡的状态，因此不遵守温度、功率和让出显卡的设置；安静时段照常。",
  ],
};

/** What the governor makes of a run: its pace, and the code of the reason. When a pause ends is said behind it. */
export const zhPaces: Record<string, string> = {
  full: "恢复全速。",
  "paused governor.quiet_hours": "已进入安静时段，暂停；",
  "paused governor.other_program": "另一个程序需要显卡，暂停，等它用完后继续。",
  "paused governor.heat": "显卡过热，暂停，冷却后继续。",
  "slowed governor.heat": "显卡温度达到上限，在小批次之间休息。",
  "slowed governor.power": "功耗达到上限，在小批次之间休息。",
};
