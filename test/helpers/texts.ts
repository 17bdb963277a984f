/** Names with texts, as `changeNames` takes them. */
export const texts = (set: Iterable<readonly [name: string, value: string]>) =>
  new Map([...set].map(([name, value]) => [name, { text: JSON.stringify(value) }]))
