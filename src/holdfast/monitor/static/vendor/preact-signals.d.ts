export interface Signal<T> { value: T; }
export function signal<T>(value: T): Signal<T>;
