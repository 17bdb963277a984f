import type { IconNode } from 'lucide'
import { h } from 'preact'

/** An icon decorates: a control with an icon alone has a text for screen readers. */
export const Icon = ({ of }: { of: IconNode }) => (
  <svg class='icon' viewBox='0 0 24 24' aria-hidden='true'>
    {of.map(([part, attributes], i) => h(part, { key: i, ...attributes }))}
  </svg>
)
