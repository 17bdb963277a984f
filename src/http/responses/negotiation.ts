/**
 * The weight (RFC 9110, 12.4.2) and the precision of a media range: 2 for a full type, 1 for `text/*`, 0 for any type.
 */
interface Range { weight: number, precision: number }

/**
 * The offered media type that an `Accept` header prefers (RFC 9110, 12.5.1). Of several types with the same weight,
 * prefers the type that the header names most exactly, then the type that is offered first. If the header accepts no
 * offered type, returns the first one: the RFC allows this instead of 406, for clients with a wrong header.
 */
export function preferredType<T extends string> (accept: string | undefined, offered: readonly [T, ...T[]]): T {
  if (accept === undefined) return offered[0]
  const ranges = accept.split(',').map(readRange)
  let best: { type: T } & Range = { type: offered[0], weight: 0, precision: -1 }
  for (const type of offered) {
    const { weight, precision } = rangeOf(ranges, type)
    if (weight > best.weight || (weight === best.weight && weight > 0 && precision > best.precision)) {
      best = { type, weight, precision }
    }
  }
  return best.type
}

function readRange (text: string): { name: string, weight: number } {
  const [name = '', ...parameters] = text.split(';').map((part) => part.trim().toLowerCase())
  const weight = parameters.find((parameter) => parameter.startsWith('q='))?.slice(2)
  // An invalid weight counts as 0.
  return { name, weight: weight === undefined ? 1 : /^(?:0(?:\.\d*)?|1(?:\.0*)?)$/.test(weight) ? Number(weight) : 0 }
}

// The weight of a type is the weight of the most exact range that matches the type.
function rangeOf (ranges: readonly { name: string, weight: number }[], type: string): Range {
  const names = ['*/*', `${type.split('/')[0]}/*`, type]
  let found: Range = { weight: 0, precision: -1 }
  for (const { name, weight } of ranges) {
    const precision = names.indexOf(name)
    if (precision > found.precision) found = { weight, precision }
  }
  return found
}
