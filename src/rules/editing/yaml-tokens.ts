import type { CST } from 'yaml'

/** A pair of a mapping as tokens. */
export type Item = CST.CollectionItem

const TRIVIA = ['space', 'comment', 'newline', 'comma']

const isTrivia = ({ type }: CST.SourceToken) => TRIVIA.includes(type)

/** The position of the first token of a pair, after the comments above the pair. */
export function itemStart ({ start, key, sep }: Item): number {
  return start.find((token) => !isTrivia(token))?.offset ?? key?.offset ?? sep?.[0]?.offset ?? 0
}

/** The end of the last token of a pair that is no blank or comment; undefined if the pair has no such token. */
export function itemEnd ({ start, key, sep, value }: Item): number | undefined {
  if (value && !isEmpty(value)) return tokenEnd(value)
  return sourceEnd(sep) ?? (key ? tokenEnd(key) : sourceEnd(start))
}

/** Whether a token stands for a value that is not written. */
export const isEmpty = (token: CST.Token) => token.type === 'scalar' && token.source === ''

function sourceEnd (tokens: readonly CST.SourceToken[] | undefined) {
  const last = tokens?.findLast((token) => !isTrivia(token))
  return last && last.offset + last.source.length
}

/** The end of a token, without the blanks and comments after the token. */
export function tokenEnd (token: CST.Token): number {
  switch (token.type) {
    case 'block-scalar': return blockScalarBody(token) + token.source.length
    case 'flow-collection': return sourceEnd(token.end.slice(0, 1)) ?? token.offset
    case 'block-map':
    case 'block-seq':
      for (const item of token.items.toReversed()) {
        const end = itemEnd(item)
        if (end !== undefined) return end
      }
      return token.offset
    default: return token.offset + ('source' in token ? token.source.length : 0)
  }
}

/** The block scalar that a pair ends with. */
export function lastBlockScalar ({ key, sep, value }: Item): CST.BlockScalar | undefined {
  const last = value && !isEmpty(value) ? value : sourceEnd(sep) === undefined ? key : undefined
  if (last?.type === 'block-map' || last?.type === 'block-seq') {
    const item = last.items.findLast((item) => itemEnd(item) !== undefined)
    return item && lastBlockScalar(item)
  }
  return last?.type === 'block-scalar' ? last : undefined
}

/** The header of a block scalar, such as `|2-`. */
export const blockHeader = ({ props }: CST.BlockScalar): string =>
  props.find((token): token is CST.SourceToken => token.type === 'block-scalar-header')?.source ?? ''

/** The indentation of the lines of a block scalar. Undefined without a line of text, unless the header says it. */
export function blockIndent (token: CST.BlockScalar): number | undefined {
  const explicit = /[1-9]/.exec(blockHeader(token))?.[0]
  return explicit === undefined
    ? /^ +(?=[^ \r\n])/m.exec(token.source)?.[0].length
    : token.indent + Number(explicit)
}

/** The position of the lines of a block scalar, after its header. The token does not contain this position. */
export function blockScalarBody (token: CST.BlockScalar): number {
  const last = token.props.at(-1)
  return last === undefined ? token.offset : tokenEnd(last)
}
