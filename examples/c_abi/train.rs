// Meshwright from Rust, without any crate:
//   rustc train.rs -L PREFIX/lib -C link-arg=-Wl,-rpath,PREFIX/lib && ./train job.toml
use std::ffi::{c_char, c_int, c_void, CStr, CString};

#[repr(C)]
struct Step {
    size: usize,
    step: i64,
    loss: f64,
    grad_norm: f64,
    lr: f64,
    tokens: i64,
    step_ms: f64,
    memory_bytes: i64,
}
enum Job {}
enum Run {}

#[link(name = "meshwright_c")]
extern "C" {
    fn meshwright_error_text() -> *const c_char;
    fn meshwright_job_open(path: *const c_char, overrides: *const *const c_char, count: usize, job: *mut *mut Job) -> c_int;
    fn meshwright_job_close(job: *mut Job);
    fn meshwright_run_open(job: *const Job, options: *const c_void, run: *mut *mut Run) -> c_int;
    fn meshwright_run_train(run: *mut Run, steps: i64, after: extern "C" fn(*const Step, *mut c_void) -> c_int, user: *mut c_void) -> c_int;
    fn meshwright_run_finish(run: *mut Run) -> c_int;
    fn meshwright_run_close(run: *mut Run);
}

extern "C" fn after_step(step: *const Step, losses: *mut c_void) -> c_int {
    let (step, losses) = unsafe { (&*step, &mut *(losses as *mut Vec<f64>)) };
    losses.push(step.loss);
    println!("step {} loss {:.6}", step.step, step.loss);
    0
}

fn main() {
    let path = CString::new(std::env::args().nth(1).expect("train JOB.toml")).unwrap();
    let mut losses: Vec<f64> = Vec::new();
    let status = unsafe {
        let (mut job, mut run) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut status = meshwright_job_open(path.as_ptr(), std::ptr::null(), 0, &mut job);
        if status == 0 { status = meshwright_run_open(job, std::ptr::null(), &mut run); }
        if status == 0 { status = meshwright_run_train(run, 0, after_step, &mut losses as *mut Vec<f64> as *mut c_void); }
        if status == 0 { status = meshwright_run_finish(run); }
        if status != 0 { eprint!("{}", CStr::from_ptr(meshwright_error_text()).to_string_lossy()); }
        meshwright_run_close(run);
        meshwright_job_close(job);
        status
    };
    if status == 0 { println!("{} steps", losses.len()); }
    std::process::exit(status);
}
