/** Tokens of an example in the turns a reader sees. */

export interface Token {
  id: number;
  text: string;
  learned: boolean;
}

export interface ShownTurn {
  role: string | null;
  nLearned: number;
  tokens: { token: Token; at: number }[];
}

const OPENS = /^(<\|im_start\|>|<\|start_header_id\|>|<\|(user|assistant|system|tool)\|>|<start_of_turn>|\[INST\])$/;
const ROLE = /^\s*(system|user|assistant|model|tool|ipython)\s*$/;
/** A role's name may be several tokens: "ass", "istant". */
const ROLE_TOKENS = 4;

/** Markers of the template and the tokenizer rather than words of the example. */
export function isSpecial(text: string): boolean {
  return (
    /^<[|｜][^|｜]*[|｜]>$/.test(text) ||
    /^<\/?(s|bos|eos|pad|unk|start_of_turn|end_of_turn)>$/.test(text) ||
    /^\[\/?(INST|SYS)\]$/.test(text)
  );
}

/**
 * Splits at the tokens that open a turn in the common templates; where there is none, between what is only read and
 * what is learned.
 */
export function turns(tokens: readonly Token[]): ShownTurn[] {
  const opened = tokens.some((t) => OPENS.test(t.text.trim()));
  const out: ShownTurn[] = [];
  for (const [at, token] of tokens.entries()) {
    const last = out[out.length - 1];
    const previous = tokens[at - 1];
    const starts =
      last === undefined ||
      (opened
        ? OPENS.test(token.text.trim()) && last.tokens.some(({ token: t }) => OPENS.test(t.text.trim()))
        : token.learned !== previous?.learned);
    if (starts) out.push({ role: null, nLearned: 0, tokens: [] });
    const turn = out[out.length - 1] as ShownTurn;
    turn.tokens.push({ token, at });
    if (token.learned) turn.nLearned++;
    if (turn.role === null && OPENS.test(token.text.trim())) turn.role = roleAfter(tokens, at);
  }
  return out;
}

/** The role that is named behind an opening token, up to the end of its line or header. */
function roleAfter(tokens: readonly Token[], at: number): string | null {
  let text = "";
  for (const token of tokens.slice(at + 1, at + 1 + ROLE_TOKENS)) {
    if (isSpecial(token.text)) break;
    text += token.text;
    if (/[\r\n]/.test(text)) break;
  }
  return ROLE.exec(text)?.[1] ?? null;
}

/** A token's text with its line breaks and tabs made visible. */
export function visible(text: string): string {
  return text.replace(/\r\n|\n/g, "↵").replace(/\t/g, "⇥");
}
