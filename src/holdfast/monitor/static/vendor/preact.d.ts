export type VNode = unknown;
export function h(type: unknown, props: unknown, ...children: unknown[]): VNode;
export function render(vnode: VNode, parent: Element): void;
