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

/** Codes of errors and of advice on the hardware: what is so, what to do. A code that is not here is shown in the engine's words. */
export const zhErrors: Record<string, readonly [string, string]> = {
  "plan.does_not_fit": ["这个运行放不下。", ""],
  "plan.no_host_memory": [
    "要放在系统内存里等待的内容比空闲的系统内存还多。",
    "词嵌入、各层输入和层权重放在哪里请留空：方案会按空闲的系统内存来安排。",
  ],
  "plan.batch_contradiction": ["批次的三个数互相矛盾。", "去掉其中一个。"],
  "plan.batch_not_divisible": ["有效批次不能整除。", "换一个能整除的值，或留空。"],
  "plan.out_of_range": ["有一个设置超出了允许的范围。", "改到允许的范围内。"],
  "plan.no_compute": ["这个设备不能用所选的类型计算。", "计算类型留空，由方案决定。"],
  "plan.no_kernel": ["显卡没有适合这个模型注意力头宽度的内核。", "在处理器上训练这个模型：把环境变量 HEARTH_ENGINE 设为 processor。"],
  "plan.base_contradiction": ["基座的精度与计算类型互相矛盾。", "基座留空或改为 nf4，或者计算类型留空。"],
  "plan.no_targets": ["没有选择要训练的线性层。", "至少选择一个。"],
  "plan.repeated_target": ["有一个线性层被列出了两次。", "每层只列一次。"],
  "plan.length_past_model": ["文本长度超过了模型的上限。", "选择更短的长度，或留空。"],
  "plan.no_examples": ["数据里没有可用的样本。", "查看数据页列出的问题，每一条都有行号和原因。"],
  "plan.nothing_learned": ["没有任何词元参与学习。", "查看样本预览：只有回答会被学习。"],
  "plan.all_too_long": ["所有样本都超过了长度上限。", "增大长度，或选择截断。"],
  "plan.no_model_fits": ["目录中没有能放下的模型。", "缩短长度、降低秩，或换一张显卡。"],
  "hardware.write_card": ["显卡描述无法写入或删除。", "腾出空间，或检查是否有权限。"],
  "hardware.bad_card_name": ["这个显卡名称不能使用。", "名称不能为空，最多 80 个字符。"],
  "hardware.bundled_card": ["这是 Hearth 自带的显卡，不能改动。", "换一个名称保存。"],
  "model.unknown_name": ["这里没有这个名称的文件或文件夹，目录中也没有这个模型。", ""],
  "model.beyond_f16": ["模型有一个权重超出了 f16 的范围（65,504）。", "计算类型改为 f32；RTX 30 系列及更新的显卡也可以用 bf16。"],
  "model.not_here": ["模型的分词器不在这里，无法计算词元数。", ""],
  "hardware.not_here": ["这是描述出来的显卡，这台电脑里没有它，不能在上面训练。", "仍然可以为它做方案；要在这台电脑上训练，请清空 HEARTH_HARDWARE。"],
  "hardware.write_disk": ["无法测量磁盘速度。", "腾出空间，或检查是否有写入权限。"],
  "hardware.old_driver": ["NVIDIA 驱动太旧，此引擎的 CUDA 13 需要 580 或更新的版本。", "安装新的 NVIDIA 驱动；在此之前在处理器上训练。"],
  "hardware.mig": ["显卡被划分成几个部分（MIG），一个运行只能用其中一个。", "不用做什么：方案按这一部分计算。关闭 MIG 后可以用整张卡。"],
  "hardware.mig_empty": ["显卡设为划分模式（MIG），但还没有划分出任何部分，不能计算。", "请管理员创建一个部分，或关闭 MIG。"],
  "hardware.hot": ["显卡温度过高。", "清理风扇的灰尘，改善通风，并看看是哪个程序在用它。"],
  "hardware.battery": ["笔记本正在用电池：显卡只得到一小部分功率，电量也可能撑不到结束。", "开始之前接上电源。"],
  "hardware.memory_taken": ["其他程序占用了不少显存。", "关闭不需要的程序：方案只计算空闲的显存。"],
  "hardware.display": ["显示器接在这张显卡上：桌面会占用一些显存，训练时反应也会变慢。", "如果电脑还有别的显示输出，把显示器接到那里。"],
  "hardware.narrow_link": ["显卡没有用上全部 PCIe 通道。", "只有放在系统内存里的部分会变慢。换到离处理器最近的插槽，不用转接线。"],
  "hardware.old_slot": ["插槽的 PCIe 版本低于显卡支持的版本。", "只有放在系统内存里的部分会变慢。看看固件是否限制了插槽。"],
  "hardware.low_power": ["显卡的功率上限低于它的额定功率。", "笔记本请选择性能模式并接上原装电源；台式机如非有意，可以用管理员权限运行 nvidia-smi -pl 调高。"],
  "step.no_card": ["这个运行是为显卡制定的，而这里没有可用的显卡。", "在有显卡的电脑上运行，或开始新的运行。"],
  "step.no_bf16": ["这个运行用 bf16 计算，而这里的显卡没有 bf16。", "在 RTX 30 系列及更新的显卡上运行，或开始新的运行。"],
  "step.beyond_f16": ["梯度超出了 f16 的范围，不再缩放损失也是如此。", "最近的检查点是安全的。计算类型改为 f32，或降低学习率，开始新的运行。"],
  "step.unknown_token": ["数据里有模型不认识的词元编号。", "使用模型自带的分词器。"],
  "run.config": ["运行的设置有误。", "修改后再开始。"],
  "run.not_found": ["没有这个运行。", "在运行列表中选择。"],
  "run.busy": ["另一个进程正在使用这个运行。", "等它结束，或先停止它。"],
  "run.not_running": ["这个运行没有在进行。", "可以恢复它。"],
  "run.no_checkpoint": ["这个运行还没有检查点。", "恢复训练，直到保存第一个检查点。"],
  "run.disk_too_small": ["磁盘空间不足以保存检查点。", "腾出空间，或把运行放到另一块磁盘。"],
  "run.disk_full": ["磁盘已满。", "腾出空间后恢复运行，已保存的内容是安全的。"],
  "run.io": ["文件无法读写。", "检查文件是否存在、是否有权限。"],
  "run.input_changed": ["模型或数据在运行开始后被改动。", "恢复原来的文件，或开始新的运行。"],
  "run.damaged": ["运行文件夹已损坏。", "删除损坏的文件，或开始新的运行。"],
  "run.nothing_to_learn": ["没有可以学习的内容。", "查看数据页的预览。"],
  "run.does_not_fit": ["这个运行放不下。", "按方案页的建议修改。"],
  "run.over_budget": [
    "预演表明：即使用最省内存的方式，此运行也超出了可用的内存。",
    "请开始一个新的运行：它的方案会计入这次测得的用量，并给出放得下的设置或说明该改什么。也可以关闭占用内存的其他程序，再用 hearth resume 继续。",
  ],
  "run.out_of_memory": [
    "内存不足，已用最省内存的方式仍无法继续。",
    "关闭占用内存的其他程序后恢复运行，或用更短的长度、更低的秩或更小的模型开始新的运行。",
  ],
  "step.out_of_memory": ["内存不足。", "关闭占用内存的其他程序，或换用更小的模型或更短的长度。"],
  "model.out_of_memory": ["加载模型时内存不足。", "关闭占用内存的其他程序，或换用更小的模型。"],
  "generate.out_of_memory": ["生成回答时内存不足。", "关闭占用内存的其他程序，或换用更小的模型。"],
  "run.beyond_f16": [
    "损失变成了无效数值，训练已停止：这个运行用 f16 计算，它的范围到 65,504 为止。",
    "计算类型改为 f32（更慢，占用更多内存）开始新的运行；RTX 30 系列及更新的显卡也可以用 bf16。如果仍然无效，降低学习率。",
  ],
  "run.not_finite": ["损失变成了无效数值，训练已停止。", "降低学习率后恢复。"],
  "gpu.platform": ["NVIDIA 没有为这个系统发布运行库。", "在这里，运行会在处理器上训练。"],
  "gpu.no_folder": ["这个用户没有存放程序数据的文件夹。", "把 HEARTH_HOME 设为一个可以写入的文件夹。"],
  "gpu.busy": ["另一个进程正在下载运行库。", "等它结束，或先停止它。已下载的部分会保留。"],
  "gpu.disk_too_small": ["磁盘空间不足以存放运行库。", "腾出空间，或把 HEARTH_HOME 设到另一块磁盘。"],
  "gpu.disk_full": ["磁盘已满。", "腾出空间后重试，已下载的部分会保留。"],
  "gpu.unreachable": ["无法连接到下载地址。", "检查网络后重试，已下载的部分会保留。也可以选择镜像，或从文件夹安装。"],
  "gpu.refused": ["服务器没有这个文件。", "选择另一个镜像。"],
  "gpu.wrong_size": ["得到的不是所要的文件。", "检查网络和镜像，然后重试。"],
  "gpu.wrong_bytes": ["文件与 NVIDIA 发布的不一致，没有保留。", "重试，或选择另一个镜像。"],
  "gpu.not_in_folder": ["文件夹里没有所需的安装包。", "把同名的安装包放进这个文件夹。"],
  "gpu.archive": ["安装包无法解压。", ""],
  "gpu.io": ["文件无法读写。", "检查文件夹是否可写，以及是否有运行正在使用显卡。"],
  "gpu.cancelled": ["已停止，已下载的部分会保留。", "再次开始会从中断处继续。"],
  "window.preset_name": ["这个名称不能使用。", "名称不能为空，最多 80 个字符。"],
  "window.engine_missing": ["找不到引擎程序 hearth。", "重新安装 Hearth，或设置 HEARTH_ENGINE。"],
  "window.engine_ended": ["引擎意外结束。", "重试一次。"],
  "window.engine_output": ["引擎的回答无法读取。", "重试一次。"],
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

/** What is unusual about a model, its template or a file of examples, with its values. */
export const zhRemarks: readonly (readonly [RegExp, string])[] = [
  [/^The weights(?: of (.+))? are quantised \((.+)\): .*$/, "权重是量化的（$2）：按文件中的权重训练和合并，而不是按原始权重。"],
  [/^generation_config\.json sets (.+) although do_sample is not true; .*$/, "generation_config.json 设置了 $1，但 do_sample 不为 true；导出时保持原样。"],
  [/^lm_head\.weight is in the weights but not used: .*$/, "权重里有 lm_head.weight，但不使用：tie_word_embeddings=true，词嵌入就是输出层。"],
  [/^Tensors that the model does not use: (.+)\.$/, "模型不使用的张量：$1。"],
  [/^(\d+) tensors are not part of a Llama model and are left out: (.+)\.$/, "$1 个张量不属于 Llama 模型，未使用：$2。"],
  [/^The model has no chat template\. .*$/, "模型没有对话模板。对话和指令以 ### Instruction: 和 ### Response: 为标题书写，提示与回答首尾相连。"],
  [/^The tokenizer names no end-of-sequence token: .*$/, "分词器没有结束词元：模型学不会停下。"],
  [
    /^The template ends turns with (.+) \((\d+)\), but the tokenizer's end-of-sequence token is (.+) \((\d+)\)\. .*$/,
    "模板以 $1（$2）结束每一轮，而分词器的结束词元是 $3（$4）。学习前者；回答遇到任一个都会停下。",
  ],
  [/^The template ends turns with no special token; (.+) \((\d+)\) is learned .*$/, "模板不用特殊词元结束一轮；每段对话末尾学习 $1（$2）。"],
  [/^Neither the template nor the tokenizer ends a turn: .*$/, "模板和分词器都不结束一轮：模型学不会停下。"],
  [/^The template adds a system block to conversations without a system message: (.+)\.$/s, "对话没有系统消息时，模板会加上系统部分：$1。"],
  [/^The template prints the date; (.+) is used for all examples\.$/, "模板会写出日期；所有样本都使用 $1。"],
  [/^The template begins answers with (.+), which its conversations do not hold; .*$/s, "模板让回答以 $1 开头，而对话里没有它；学习时不含它。"],
  [/^The template writes no (.+) \((\d+)\); .*$/, "模板不写 $1（$2）；像分词器处理文本那样加一次。"],
  [/^The file was read as (.+), not UTF-8\. .*$/, "文件按 $1 而不是 UTF-8 读取。如果文字不对，请另存为 UTF-8 后重新打开。"],
  [/^Some bytes are not (.+); they became U\+FFFD\.$/, "有些字节不是 $1，已变成 U+FFFD。"],
  [
    /^The columns' names are not of a known format\. Guessed: (.+) is the prompt and (.+) the answer\. .*$/,
    "列名不属于已知格式。推测：$1 是提示，$2 是回答。如果不对，请另选列。",
  ],
  [/^(\d+) conversations? do(?:es)? not end with the assistant; .*$/, "$1 段对话不以助手结尾；最后一轮作为文本保留，但不学习。"],
  [/^Columns are separated by (.+)\.$/, "各列以 $1 分隔。"],
  [/^The rows were taken from the list under (.+)\.$/, "各行取自 $1 下的列表。"],
  [/^The file holds one list per column \((.+)\); it was read as (\d+) rows\.$/, "文件中每列是一个列表（$1）；读作 $2 行。"],
];

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
  tokenizer: "无法转换为词元",
  mask: "找不到要学习的部分",
  nothing_learned: "没有可以学习的内容",
  too_long: "超过长度上限",
  cut: "按上限截断",
};

/** Reasons of settings, by their code. */
export const zhReasons: Record<string, string> = {
  "rank.small": "可学的不多：适合单一任务或内存紧张时。",
  "rank.usual": "足以学会语气、格式和一项任务。",
  "rank.large": "能学会新的习惯；多数任务用不到。",
  "rank.very_large": "很少比 64 更好，而且更慢。",
  "length.covers_all": "最长的样本也完整放得下。",
  "length.covers_share": "大多数样本完整放得下。",
  "length.fixed": "按您的选择。",
  "packing.short_examples": "样本较短：拼在一起训练，互相看不见。",
  "packing.long_examples": "样本较长：每个序列一条，没有填充。",
  "packing.fixed": "按您的选择。",
  "batch.few_examples": "序列不多：每一条都算一步。",
  "batch.at_once": "一次就放得下。",
  "batch.accumulated": "累积的小批次与一个大批次训练效果相同。",
  "batch.fixed": "按您的选择。",
  "recompute.free_memory": "全部保留也放得下，不做重复计算。",
  "recompute.part": "全部保留放不下；保留注意力，其余重算。",
  "recompute.tight": "内存紧张：只保留每层的输入。结果完全相同。",
  "recompute.fixed": "按您的选择；各种方式结果相同。",
  "host_memory.tight": "放在系统内存中等待，显卡计算时同步搬运。结果完全相同。",
  "host_memory.parts": "一次算完放不下。结果完全相同。",
  "host_memory.fixed": "按您的选择；结果相同。",
  "weight_cache.left_over": "内存有余，这些权重只反量化一次。结果完全相同。",
  "weight_cache.fixed": "按您的选择；结果相同。",
  "optimizer.small_state": "状态很小，用 32 位。",
  "optimizer.large_state": "状态较大，用 8 位。",
  "optimizer.tight": "32 位放不下，用 8 位。",
  "optimizer.fixed": "按您的选择。",
  "base.fixed": "按您的选择。适配器、求和与损失始终是 32 位。",
  "base.fits": "原始精度放得下，不做任何舍入。",
  "base.layers": "只有 NF4 基座才能按您的选择放置或保留各层的权重。",
  "base.tight": "原始精度放不下。求和与损失仍是 32 位。",
  "compute.fixed": "按您的选择。求和、归一化与损失始终是 32 位。",
  "compute.fixed_f16": "按您的选择。损失会放大，使小的梯度不丢失；超过 65,504 时运行结束。",
  "compute.no_bf16": "这张显卡没有 bf16。损失会放大，使小的梯度不丢失；超过 65,504 时运行结束。",
  "learning_rate.usual": "LoRA 的常用值。",
  "learning_rate.fixed": "按您的选择。",
  "epochs.usual": "样本不多，多看几轮；保留最佳评估。",
  "epochs.usual_unevaluated": "样本不多，多看几轮。",
  "epochs.fixed": "按您的选择。",
  "evaluation.off": "没有留出样本，不做评估。",
  "evaluation.held_out": "留出一部分样本，从不参与训练。",
  "evaluation.file": "用您指定的评估文件。",
};

/** What another value does where no plan says it, by setting. */
export const zhChanges: Record<string, string> = {
  learning_rate: "更低：学得更慢，忘得更少。",
  warmup: "更长：起步更平缓。",
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
export const zhWarnings: Record<string, string> = {
  many_too_long: "许多样本超过长度上限。",
  few_examples: "样本很少，可能被背下来而不是学会。",
  card_planned_only: "这是为显卡制定的方案；此引擎在处理器上训练。",
  very_long: "这个运行要花很长时间。更小的模型、更少的轮数或一张显卡会缩短它。",
  patience_without_evaluation: "提前结束需要留出样本，而现在没有留出。",
  much_host_memory: "固定在系统内存里的内容超过了空闲内存的一半：其他程序可能会内存不足。",
  no_samples: "内存不足，评估时不回答留出的问题。",
  rank_over_width: "秩超过了层的宽度。",
  card_not_used: "电脑里有显卡，但此版本在处理器上训练。",
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
  "run.on_rung": [/^Memory (?:ran out|was short) earlier in this run\./, () => "此运行之前内存不足，现在以较省内存的方式继续；所学内容不变。"],
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
    /^No space could be set aside for a checkpoint: (.+)\. It is tried again/,
    (m) => `没有为检查点预留出磁盘空间：${m[1]}。每次保存时会再试；在此之前，磁盘写满会丢失上一个检查点之后的步数。`,
  ],
  "run.checkpoint_not_removed": [
    /^An old checkpoint is still there: (.+)\.$/,
    (m) => `一个旧的检查点没有删除：${m[1]}。`,
  ],
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
    /^What was rehearsed is not known any more: (.+)\.$/,
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
