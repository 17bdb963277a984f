import { signal } from '@preact/signals'
import type { ClientKey } from '../src/client/keys.ts'

// The keys of client-managed projects that this page holds. The browser never sends the key string or the key.

const FORGET_AFTER_MS = 15 * 60 * 1000

/** The open keys by project (organization/project); a key without use for 15 minutes is forgotten. */
const held = signal<ReadonlyMap<string, { key: ClientKey, timer: number }>>(new Map())

export function holdKey (project: string, key: ClientKey) {
  forgetKey(project)
  const timer = window.setTimeout(() => forgetKey(project), FORGET_AFTER_MS)
  held.value = new Map(held.value).set(project, { key, timer })
}

export function forgetKey (project: string) {
  const found = held.value.get(project)
  if (found === undefined) return
  clearTimeout(found.timer)
  held.value = new Map([...held.value].filter(([id]) => id !== project))
}

export const forgetKeys = () => [...held.peek().keys()].forEach(forgetKey)
export const keepKeys = () => [...held.peek().keys()].forEach(heldKey)
export const isOpen = (project: string): boolean => held.value.has(project)

/** The key of a project. Each use starts the 15 minutes again. Throws an error with a sentence for people. */
export function heldKey (project: string): ClientKey {
  const found = held.peek().get(project)
  if (found === undefined) throw new Error('Enter the key string of this project first.')
  clearTimeout(found.timer)
  found.timer = window.setTimeout(() => forgetKey(project), FORGET_AFTER_MS)
  return found.key
}
