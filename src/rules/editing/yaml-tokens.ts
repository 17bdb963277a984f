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

/** The position of the lines of a block scalar, after its header. The token does not contain this position. */
export function blockScalarBody (token: CST.BlockScalar): number {
  const last = token.props.at(-1)
  return last === undefined ? token.offset : tokenEnd(last)
}
