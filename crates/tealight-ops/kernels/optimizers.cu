// Updates in place. Parameters and moments are `Number`s; hyper-parameters come in f64.

KERNEL(adamw, Number* parameter, const Number* g, Number* first_moment, Number* second_moment, i64 n, double lr,
       double beta1, double beta2, double epsilon, double weight_decay, double correction1, double correction2) {
    i64 i = element();
    if (i >= n) return;
    Wide g_i = wide(g[i]);
    Wide m = Wide(beta1) * wide(first_moment[i]) + Wide(1 - beta1) * g_i;
    Wide v = Wide(beta2) * wide(second_moment[i]) + Wide(1 - beta2) * g_i * g_i;
    first_moment[i] = narrow(m);
    second_moment[i] = narrow(v);
    Wide update = m / Wide(correction1) / (sqrt(v / Wide(correction2)) + Wide(epsilon));
    Wide theta = wide(parameter[i]);
    parameter[i] = narrow(theta - Wide(lr) * (update + Wide(weight_decay) * theta));
}
