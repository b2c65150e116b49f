/** Simplified Chinese of sentences that the engine writes with their values in them, known by their form. */

/** The engine's form of a sentence, and ours: `$1` or the groups in a function. */
export type Rule = readonly [RegExp, string | ((match: string, ...groups: string[]) => string)];

/** A sentence by the first rule that knows it, else each piece that the engine joined with "; ", as far as they are known. */
export function byRule(text: string, rules: readonly Rule[] = zhRemarks): string {
  const rule = rules.find(([pattern]) => pattern.test(text));
  if (rule === undefined) {
    const pieces = text.split("; ");
    const said = pieces.length > 1 ? pieces.map((piece) => byRule(piece, rules)) : pieces;
    return said.every((words, i) => words === pieces[i]) ? text : said.join("；");
  }
  const [pattern, words] = rule;
  return typeof words === "string" ? text.replace(pattern, words) : text.replace(pattern, words);
}

const kinds: Record<string, string> = {
  "true or false": "真假值",
  "a number": "数字",
  text: "文字",
  "a list": "列表",
  "an object": "对象",
};
const kind = (name = "") => kinds[name] ?? name;
const place = (column = "", line?: string) => (line === undefined ? `第 ${column} 列` : `其第 ${line} 行第 ${column} 列`);

/**
 * Sentences that carry values and have no code: what is unusual about a model, its template or a file of examples, where figures are
 * from, what is wrong with a row, what a proof found. The engine's form, and ours.
 */
export const zhRemarks: readonly Rule[] = [
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
  [/^(\S+) is used; (\S+) beside it is ignored\.$/, "使用 $1；旁边的 $2 被忽略。"],
  [/^(\S+) is missing; the (\d+) shards are used by their names\.$/, "缺少 $1；按文件名使用 $2 个分片。"],
  [/^Not in (\S+) and therefore ignored: (.+)\.$/, "不在 $1 中，因此被忽略：$2。"],

  // What is worth knowing about a card.
  [/^NVIDIA driver (.+) is too old for this engine's CUDA 13, which needs (\d+) or newer\.$/, "NVIDIA 驱动 $1 太旧，此引擎的 CUDA 13 需要 $2 或更新的版本。"],
  [
    /^(.+) is divided into (\d+) parts? \(MIG\): a run has the (?:part (\S+)|first part) with (.+) of (.+)\.$/,
    (_, card, n, part, bytes, whole) =>
      `${card} 分为 ${n} 份（MIG）：一个运行使用${part === undefined ? "第一份" : `其中的 ${part}`}，${whole} 中的 ${bytes}。`,
  ],
  [/^The card is slowed down by heat \((.+)\)\.$/, "显卡因过热而降频（$1）。"],
  [/^The card is hot before anything runs: (.+); it slows down at (.+)\.$/, "还没有运行任何程序，显卡就已经是 $1；它从 $2 起降频。"],
  [
    /^Other programs hold (.+) of the card's ([^:]+?)(?:: (.+))?\.$/,
    (_, held, whole, who) => `其他程序占用了显卡 ${whole} 中的 ${held}${who === undefined ? "" : `：${who}`}。`,
  ],
  [/^The card is connected with (\d+) of its (\d+) PCIe lanes\.$/, "显卡有 $2 条 PCIe 通道，只连接了 $1 条。"],
  [/^The slot works at PCIe (\d)\.0 and the card could do (\d)\.0\.$/, "插槽工作在 PCIe $1.0，而显卡支持 $2.0。"],
  [/^The card may draw (\d+) of its (\d+) W\.$/, "显卡的功率上限是 $1 W，额定功率是 $2 W。"],

  // Where a speed or a power is from.
  [/^measured with this model on this hardware$/, "用这个模型在这台硬件上实测"],
  [/^converted from another measurement of this model on this hardware$/, "由这个模型在这台硬件上的另一次实测换算"],
  [/^calculated from ([\d,]+) cores? at (\d+) GFLOP\/s in all$/, "按 $1 个核、共 $2 GFLOP/s 计算"],
  [/^calculated from (\d+) % of ([\d.]+) TFLOP\/s$/, "按 $2 TFLOP/s 的 $1% 计算"],
  [/^calculated as for a slow card: .*$/, "按较慢的显卡计算：这张卡的速度未知"],
  [/^as given$/, "按填写的值"],
  [/^(\d+) % of the (\d+) W of the board, and (\d+) W assumed for the rest of the computer$/, "板卡功耗 $2 W 的 $1%，电脑其余部分按 $3 W 估算"],
  [
    /^(\d+) % of the (\d+) W that its driver allows, and (\d+) W assumed for the rest of the computer$/,
    "驱动允许的 $2 W 的 $1%，电脑其余部分按 $3 W 估算",
  ],
  [/^assumed: the board power of this card is not known; (\d+) W are the rest of the computer$/, "估算值：这张显卡的板卡功耗未知，其中 $1 W 属于电脑其余部分"],
  [/^assumed for a home computer whose processor is busy$/, "按处理器满载的家用电脑估算"],

  // Less memory than planned, change by change.
  [/^no weights kept dequantised$/, "不再保留反量化的权重"],
  [/^(\d+) rows at once at the head instead of (\d+)$/, "输出层一次 $1 行（原为 $2 行）"],
  [/^(\d+) sequences? at once instead of (\d+), and (\d+) times a step$/, "一次 $1 条序列（原为 $2 条），每步 $3 次"],
  [/^recompute mode (\w+) instead of (\w+)$/, "重算方式 $1（原为 $2）"],
  [/^(\d+) layers? recomputing less than (\w+) instead of (\d+)$/, "比 $2 少重算的层为 $1 层（原为 $3 层）"],
  [/^(\d+) rows at once through the MLP$/, "MLP 一次 $1 个词元"],
  [/^the layers' inputs wait in system memory$/, "各层的输入放在系统内存中等待"],

  // What is wrong with a row.
  [
    /^incomplete JSON, it ends early at column (\d+)(?: of its line (\d+))? \((.+)\)$/,
    (_, column, line, why) => `JSON 不完整，在${place(column, line)}提前结束（${why}）`,
  ],
  [
    /^invalid JSON at column (\d+)(?: of its line (\d+))?: (.+)$/,
    (_, column, line, why) => `${place(column, line)}不是有效的 JSON：${why}`,
  ],
  [
    /^lone surrogate at column (\d+)(?: of its line (\d+))?: .*$/,
    (_, column, line) => `${place(column, line)}有不成对的代理字符：\\u 转义 D800 到 DFFF 只是半个字符，缺少另一半`,
  ],
  [/^text that is no JSON value$/, "不是 JSON 值的文字"],
  [/^nothing after this row could be read$/, "此行之后的内容无法读取"],
  [/^the list is never closed with \]: .*$/, "列表没有用 ] 闭合：文件可能在这里的整行之后被截断"],
  [/^text after the end of the list was not read: (.+)$/s, "列表结束之后的文字没有读取：$1"],
  [/^line (\d+) holds the byte (\S+), which is not UTF-8$/, "第 $1 行含有字节 $2，不是 UTF-8"],
  [/^the row is (.+), not an object with columns$/, (_, what) => `这一行是${kind(what)}，而不是带列的对象`],
  [/^(\d+) cells where the header has (\d+)$/, "有 $1 列，而表头有 $2 列"],
  [/^the quote opened on line (\d+) is never closed; .*$/, "第 $1 行打开的引号一直没有闭合；此后的行单独读取"],
  [
    /^the quoted cell that begins on line (\d+) ends on line (\d+) but is followed by text; .*$/,
    "从第 $1 行开始的带引号单元格在第 $2 行结束，后面却还有文字；单元格内的引号要写两次",
  ],
  [/^no conversation: (".+") is missing$/, "没有对话：缺少 $1"],
  [/^no conversation: (".+") is no list of turns$/, "没有对话：$1 不是由各轮组成的列表"],
  [/^no conversation: the text in its place is not JSON \((.+)\)$/, "没有对话：该处的文字不是 JSON（$1）"],
  [/^no conversation: (.+) in its place$/, (_, what) => `没有对话：该处是${kind(what)}`],
  [/^the conversation is an empty list$/, "对话是空列表"],
  [/^no assistant turn: there is nothing to learn$/, "没有助手的回答：没有可以学习的内容"],
  [/^every assistant turn has weight 0: there is nothing to learn$/, "助手各轮的权重都是 0：没有可以学习的内容"],
  [/^the assistant's turn (\d+) is empty$/, "第 $1 轮（助手）是空的"],
  [/^the prompt is empty \((.+) holds no text\)$/, "问题为空（$1 没有文字）"],
  [/^the answer is empty \((.+) holds no text\)$/, "回答为空（$1 没有文字）"],
  [/^the answer is empty \((.+) is missing\)$/, "回答为空（缺少 $1）"],
  [/^the text is empty$/, "文本为空"],
  [/^(".+") is a number whose spelling is lost \((.+)\); write it in quotes$/, "$1 是数字，读取后写法会改变（$2）；请写在引号里"],
  [/^(".+") holds (.+) where text is expected$/, (_, key, what) => `${key} 应为文字，却是${kind(what)}`],
  [/^turn (\d+) holds (.+) where text is expected$/, (_, turn, what) => `第 ${turn} 轮应为文字，却是${kind(what)}`],
  [/^turn (\d+) holds a part of type (.+); only text can be learned$/, "第 $1 轮含有类型为 $2 的部分；只能学习文字"],
  [/^turn (\d+) is (.+), not an object$/, (_, turn, what) => `第 ${turn} 轮是${kind(what)}，而不是对象`],
  [/^turn (\d+) does not say who speaks(?: \(role or from\))?$/, "第 $1 轮没有说明是谁在说话（role 或 from）"],
  [/^the call in turn (\d+) is not valid JSON: (.+)$/s, "第 $1 轮的调用不是有效的 JSON：$2"],
  [/^the arguments of the call to (.+) \(id (.+)\) are not valid JSON: (.+)$/s, "对 $1（id $2）的调用参数不是有效的 JSON：$3"],
  [/^tool_calls is text that is not JSON: (.+)$/, "tool_calls 是文字，但不是 JSON：$1"],
  [/^tool_calls is not a list$/, "tool_calls 不是列表"],
  [/^the tools are text that is not JSON: (.+)$/, "工具描述是文字，但不是 JSON：$1"],
  [/^the tools are not a list$/, "工具描述不是列表"],
  [/^the model's chat template refuses this conversation: (.+)$/s, "模型的对话模板拒绝这段对话：$1"],
  [/^the model's chat template fails on this conversation: (.+)$/s, "模型的对话模板处理这段对话时出错：$1"],
  [/^the model's chat template does not write all of turn (\d+): .*$/, "模型的对话模板没有写出第 $1 轮的全部内容：其中的文字或工具调用会丢失"],
  [/^it cannot be told which part of the template's text is the answer of turn (\d+)$/, "无法判断模板写出的哪一部分是第 $1 轮的回答"],
  [/^no token belongs to the answer (.+)$/s, "没有词元属于回答 $1"],
  [/^no token of this row would be learned$/, "这一行没有词元会被学习"],
  [/^the tokenizer fails on a text of (\d+) bytes: (.+)$/s, "分词器处理 $1 字节的文本时出错：$2"],
  [/^(\d+) tokens against the limit of (\d+); left out$/, "$1 个词元，上限为 $2；不使用"],
  [/^(\d+) tokens against the limit of (\d+); what is learned lies behind the cut, left out$/, "$1 个词元，上限为 $2；要学习的部分在截断处之后，不使用"],
  [/^(\d+) tokens against the limit of (\d+); cut to \d+$/, "$1 个词元，上限为 $2；已截断"],

  // What a proof found, and what it had to be.
  [/^yes$/, "是"],
  [/^by the ordinary loader$/, "由普通的加载程序载入"],
  [/^equal on (\d+) prompts$/, "在 $1 个提示上相同"],
  [/^equal to the base's$/, "与基座相同"],
  [/^(\d+) of (\d+) tensors as computed$/, "$2 个张量中有 $1 个与计算一致"],
  [/^(\d+) of (\d+) layers as trained$/, "$2 层中有 $1 层与训练所得一致"],
  [/^(\d+) wrong: (.+)$/s, (_, n, what) => `${n} 个不对：${byRule(what ?? "")}`],
  [/^(\S+) differs in (\d+) of (\d+) values$/, "$1 的 $3 个值中有 $2 个不同"],
  [/^(\S+) has another shape$/, "$1 的形状不同"],
  [/^(\S+) should not be there$/, "不应有 $1"],
  [/^layer (\d+) (\S+) was not trained$/, "第 $1 层 $2 没有训练过"],
  [/^prompt (\d+) is encoded differently$/, "提示 $1 的编码不同"],
  [/^the chat template differs$/, "对话模板不同"],
  [/^special tokens differ$/, "特殊词元不同"],
  [/^does not stop at token (\d+)$/, "不在词元 $1 处停止"],
  [/^and (\d+) more$/, "另有 $1 个"],
  [/^W \+ \(alpha \/ rank\) B A, rounded to (\w+) once$/, "W + (alpha / rank) B A，只舍入到 $1 一次"],
  [/^the trained values, bit for bit$/, "与训练所得逐位相同"],
  [
    /^(\d+) of (\d+) layers differ, most layer (\d+) (\S+) by ([^,]+), (.+) % of its weight$/,
    "$2 层中有 $1 层不同，最大的是第 $3 层 $4：$5，为其权重的 $6%",
  ],
  [/^(\d+) of (\d+) layers differ, most layer (\d+) (\S+) by ([^,]+)$/, "$2 层中有 $1 层不同，最大的是第 $3 层 $4：$5"],
  [/^no layer differs from the base$/, "没有一层与基座不同"],
  [/^at least one layer differs$/, "至少一层不同"],
  [/^up to (\S+) \((\S+) nats on average\)$/, "最大 $1（平均 $2 nat）"],
  [/^they differ$/, "两者不同"],
  [/^not a number$/, "不是有效数值"],
  [/^not a number nats$/, "不是有效数值"],
  [/^(\S+) nats$/, "$1 nat"],
  [/^at most (\S+) for (\w+)$/, "$2 时至多 $1"],
  [/^at most (\S+) nats$/, "至多 $1 nat"],
  [/^equal at (\d+) of (\d+) positions \((.+) %\)$/, "$2 个位置中有 $1 个相同（$3%）"],
  [/^equal unless the trained model had the two within (\S+)$/, "应相同，除非训练的模型中两者相差不到 $1"],
  [/^(\d+) of (\d+) answers equal \((\d+) tokens\)$/, "$2 个回答中有 $1 个相同（$3 个词元）"],
  [/^equal unless the trained model had two tokens within (\S+)$/, "应相同，除非训练的模型中有两个词元相差不到 $1"],
  [/^(\d+) of (\d+) adapted layers are as in the base: .*$/, "$2 个适配层中有 $1 个与基座相同：训练没有改变它们。"],
  [
    /^Rounding to (\w+) keeps (\S+) % of what training changed; .*$/,
    "舍入到 $1 后保留了训练所作改变的 $2%；其余的比它相邻两数的间隔还小。导出为 f32 会全部保留。",
  ],
  [
    /^At (\d+) of (\d+) positions the two most probable tokens changed places; the trained model had them at most (\S+) apart\.$/,
    "$2 个位置中有 $1 个，最可能的两个词元互换了名次；在训练的模型中它们最多相差 $3。",
  ],
  [
    /^Answer (\d+) differs from its token (\d+) on: the trained model had the two tokens (\S+) apart there, .* \((\S+)\)\.$/,
    "回答 $1 从第 $2 个词元起不同：在训练的模型中那里的两个词元相差 $3，小于舍入能够移动的幅度（$4）。",
  ],
  [/^Written as bf16 \(the base is (.+)\): (.+) holds (\S+), more than f16 can\.$/, "已写为 bf16（基座是 $1）：$2 的值为 $3，超出了 f16 的范围。"],
  [/^lm_head\.weight of the base is left out: .*$/, "没有写出基座的 lm_head.weight：词嵌入就是输出层（tie_word_embeddings=true）。"],
  [/^(\S+) \((.+)\) is left out: the model does not compute with it\.$/, "没有写出 $1（$2）：模型不用它计算。"],
  [
    /^The base is a GGUF file: .*$/,
    "基座是 GGUF 文件：PEFT 使用这个适配器时，需要同一模型的 Hugging Face 文件夹作为基座；合并导出本身就是完整的。",
  ],
  [/^generation_config\.json is not JSON and was copied as it is; generation should also stop at (.+)\.$/, "generation_config.json 不是 JSON，已原样复制；生成时还应在 $1 处停止。"],
  [/^generation_config\.json was added, so that generation stops at (.+)\.$/, "添加了 generation_config.json，使生成在 $1 处停止。"],
  [
    /^generation_config\.json: (.+) added to eos_token_id, where turns end in this model's chat template; .*$/,
    "generation_config.json：eos_token_id 中加入了 $1，即这个模型的对话模板结束一轮的地方；其他设置不变。",
  ],
];
