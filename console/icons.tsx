import {
  ChevronRight, Copy, Eye, EyeOff, History, KeyRound, Layers, Menu, Pencil, ScrollText, Search, Trash2, TrendingUp,
  User, Users, Vault, Workflow, X, type IconNode
} from 'lucide'
import { h } from 'preact'

// Icons decorate: a control with an icon alone has a text for screen readers.

const ICONS = {
  step: ChevronRight,
  copy: Copy,
  show: Eye,
  hide: EyeOff,
  history: History,
  key: KeyRound,
  levels: Layers,
  menu: Menu,
  edit: Pencil,
  log: ScrollText,
  search: Search,
  remove: Trash2,
  usage: TrendingUp,
  person: User,
  people: Users,
  vault: Vault,
  workload: Workflow,
  close: X
} as const satisfies Record<string, IconNode>
export type IconName = keyof typeof ICONS

export const Icon = ({ of }: { of: IconName }) => (
  <svg class='icon' viewBox='0 0 24 24' aria-hidden='true'>
    {(ICONS[of] as IconNode).map(([part, attributes], i) => h(part, { key: i, ...attributes }))}
  </svg>
)
